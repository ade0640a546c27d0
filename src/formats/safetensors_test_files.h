// For tests: safetensors files written by hand, temporary folders, and expected Errors.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "hillstar/error.h"

namespace hillstar {

// A fresh folder that is removed with its content.
class TempFolder {
 public:
  TempFolder() {
    std::random_device seed;
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("hillstar-test-{:08x}{:08x}", seed(), seed());
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void Write(std::string_view file_name, std::string_view bytes) const {
    std::ofstream out(path_ / file_name, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), std::streamsize(bytes.size()));
    ASSERT_TRUE(out.good());
  }

 private:
  std::filesystem::path path_;
};

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// The JSON header of tensors that lie one after another. `metadata` is a JSON value or empty.
inline std::string HeaderText(const std::vector<TestTensor>& tensors, std::string_view metadata) {
  std::string json = "{";
  if (!metadata.empty()) json += fmt::format("\"__metadata__\":{},", metadata);
  size_t offset = 0;
  for (const TestTensor& tensor : tensors) {
    const size_t end = offset + tensor.bytes.size();
    json += fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)",
                        tensor.name, tensor.dtype, fmt::join(tensor.shape, ","), offset, end);
    offset = end;
  }
  if (json.back() == ',') json.pop_back();
  return json + "}";
}

inline std::string WithLength(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + std::string(header) + std::string(data);
}

inline std::string SafetensorsBytes(const std::vector<TestTensor>& tensors,
                                    std::string_view metadata = "") {
  std::string data;
  for (const TestTensor& tensor : tensors) data += tensor.bytes;
  return WithLength(HeaderText(tensors, metadata), data);
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// `fn` throws an Error with this code whose message contains every one of `parts`.
template <typename Fn>
void ExpectError(ErrorCode code, std::initializer_list<std::string_view> parts, const Fn& fn) {
  try {
    fn();
  } catch (const Error& e) {
    EXPECT_STREQ(ErrorName(e.code()), ErrorName(code)) << e.what();
    for (const std::string_view part : parts) {
      EXPECT_NE(std::string_view(e.what()).find(part), std::string_view::npos)
          << "'" << part << "' is not in: " << e.what();
    }
    return;
  }
  ADD_FAILURE() << "nothing was thrown";
}

}  // namespace hillstar
