// For tests: a small container of made-up bytes, written by the writer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "formats/container_writer.h"
#include "formats/safetensors_test_files.h"

namespace hillstar {

inline ContainerJob SmallJob() {
  ContainerJob job;
  const auto tensor = [&](const char* name, WeightFormat format, int64_t rows, int64_t cols) {
    ContainerTensor& t = job.tensors.emplace_back();
    t.name = name;
    t.format = format;
    t.rows = rows;
    t.cols = cols;
  };
  tensor("embed", WeightFormat::kW8, 40, 100);
  tensor("norm", WeightFormat::kF32, 1, 100);
  tensor("head", WeightFormat::kW15, 16, 64);
  for (int64_t layer : {1, 2}) {
    ContainerExperts& e = job.experts.emplace_back();
    e.layer = layer;
    e.num_experts = 3;
    e.shape = {layer == 1 ? WeightFormat::kW4 : WeightFormat::kW8, 128, 64};
  }
  job.side_files = {{"config.json", "{\"a\": 1}"}, {"tokenizer.json", "{}"}};
  job.origin = {{"operation", "test"}, {"experts", "w4"}};
  return job;
}

// The bytes of an item: a pattern of its own.
inline std::vector<uint8_t> ItemBytes(size_t part, size_t item, uint64_t num_bytes) {
  std::vector<uint8_t> bytes(num_bytes);
  std::mt19937_64 random(part * 1000 + item);
  for (uint8_t& byte : bytes) byte = uint8_t(random());
  return bytes;
}

inline void FillItem(ContainerPart* part, size_t part_index, size_t item) {
  const auto bytes = ItemBytes(part_index, item, part->items()[item].num_bytes);
  ItemWriter writer(part, item);
  const size_t half = bytes.size() / 2;
  writer.Append(bytes.data(), half);
  writer.Append(bytes.data() + half, bytes.size() - half);
  writer.Complete();
}

// Writes what is missing; returns how many items that were.
inline int FillMissing(ContainerWriter* writer) {
  int written = 0;
  for (size_t p = 0; p < writer->num_parts(); ++p) {
    ContainerPart& part = writer->part(p);
    if (part.is_finished()) continue;
    part.Start([] { return false; });
    for (size_t i = 0; i < part.items().size(); ++i) {
      if (part.has(i)) continue;
      FillItem(&part, p, i);
      ++written;
    }
    part.Finish();
  }
  writer->Finish();
  return written;
}

inline void WriteSmallContainer(const std::filesystem::path& folder) {
  ContainerWriter writer(folder, SmallJob());
  writer.Start();
  FillMissing(&writer);
}

inline std::string ReadFile(const std::filesystem::path& path) {
  return ReadWholeFile(path, uint64_t{1} << 30);
}

// File name and content of everything in a folder.
inline std::vector<std::pair<std::string, std::string>> FolderContent(
    const std::filesystem::path& folder) {
  std::vector<std::pair<std::string, std::string>> content;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    content.emplace_back(entry.path().filename().native(), ReadFile(entry.path()));
  }
  std::sort(content.begin(), content.end());
  return content;
}

}  // namespace hillstar
