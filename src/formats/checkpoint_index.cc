#include "formats/checkpoint_index.h"

#include <fmt/format.h>

#include <set>

#include "formats/json_scan.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// 60,000 tensors need 7 MiB.
constexpr size_t kMaxIndexBytes = size_t{256} << 20;
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kStandardPrefix = "model.";
constexpr std::string_view kHeadName = "lm_head.weight";
constexpr std::string_view kEmbedding = "embed_tokens.weight";

[[noreturn]] void Fail(const std::string& message) { throw Error(ErrorCode::kBadFile, message); }

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// Every shard that the index names is there.
void CheckShardsPresent(const std::vector<std::unique_ptr<SafetensorsFile>>& shards,
                        const std::unordered_map<std::string, std::string>& index) {
  std::set<std::string_view> present;
  for (const auto& shard : shards) present.insert(shard->name());
  std::set<std::string_view> missing;
  for (const auto& [name, shard] : index) {
    if (!present.contains(shard)) missing.insert(shard);
  }
  if (missing.empty()) return;
  Fail(
      fmt::format("{} names the shard {}, which is not in the folder ({} of its shards are "
                  "missing). Download it again.",
                  kIndexName, Quoted(*missing.begin()), missing.size()));
}

}  // namespace

std::unordered_map<std::string, std::string> ParseShardIndex(std::string_view json) {
  std::unordered_map<std::string, std::string> index;
  const auto add = [&](const std::string& name, JsonScalar value) {
    std::string* const shard = std::get_if<std::string>(&value);
    if (!shard || !IsPlainFileName(*shard)) {
      Fail(fmt::format("{} gives tensor {} no plain file name.", kIndexName, Quoted(name)));
    }
    if (!index.emplace(name, std::move(*shard)).second) {
      Fail(fmt::format("{} has tensor {} twice.", kIndexName, Quoted(name)));
    }
  };
  if (!ScanJsonObject(json, kIndexName, kMaxIndexBytes, "weight_map", add)) {
    Fail(fmt::format("{} has no weight_map.", kIndexName));
  }
  return index;
}

std::vector<TensorPlace> MergeShards(const std::vector<std::unique_ptr<SafetensorsFile>>& shards,
                                     const std::unordered_map<std::string, std::string>& index) {
  CheckShardsPresent(shards, index);
  std::vector<TensorPlace> places;
  std::unordered_map<std::string_view, const SafetensorsFile*> owners;
  for (const auto& shard : shards) {
    for (const SafetensorsTensor& tensor : shard->header().tensors) {
      const auto mapped = index.find(tensor.name);
      if (mapped != index.end() && mapped->second != shard->name()) continue;
      const auto [owner, is_new] = owners.emplace(tensor.name, shard.get());
      if (!is_new) {
        Fail(fmt::format("Tensor {} is in two shards, {} and {}, and no {} tells which counts.",
                         Quoted(tensor.name), Quoted(owner->second->name()), Quoted(shard->name()),
                         kIndexName));
      }
      places.push_back({shard.get(), &tensor});
    }
  }
  for (const auto& [name, shard] : index) {
    if (!owners.contains(name)) {
      Fail(fmt::format("{} says that tensor {} is in {}, but it is not.", kIndexName, Quoted(name),
                       Quoted(shard)));
    }
  }
  return places;
}

std::string NamePrefix::Standard(std::string_view stored) const {
  if (stored == head_name) return std::string(kHeadName);
  if (model_prefix != kStandardPrefix && stored.starts_with(model_prefix)) {
    // Without any prefix only the model's own parts are renamed.
    const std::string_view rest = stored.substr(model_prefix.size());
    if (!model_prefix.empty() || rest.starts_with("layers.") || rest == kEmbedding ||
        rest == "norm.weight") {
      return std::string(kStandardPrefix) + std::string(rest);
    }
  }
  return std::string(stored);
}

NamePrefix FindNamePrefix(const std::vector<TensorPlace>& places) {
  std::set<std::string> prefixes;
  std::set<std::string> heads;
  for (const TensorPlace& place : places) {
    const std::string_view name = place.tensor->name;
    // The MTP layer may bring a copy of its own.
    const bool in_layer = name.find("layers.") != std::string_view::npos;
    if (name.ends_with(kEmbedding) && !in_layer) {
      prefixes.emplace(name.substr(0, name.size() - kEmbedding.size()));
    }
    if (name.ends_with(kHeadName) && !in_layer) heads.emplace(name);
  }
  NamePrefix found;
  if (prefixes.empty() || prefixes.contains(found.model_prefix)) return found;
  if (prefixes.size() > 1) {
    Fail(fmt::format("The checkpoint holds two models: {} and {}.",
                     Quoted(*prefixes.begin() + std::string(kEmbedding)),
                     Quoted(*prefixes.rbegin() + std::string(kEmbedding))));
  }
  found.model_prefix = *prefixes.begin();
  if (!heads.contains(found.head_name) && heads.size() == 1) found.head_name = *heads.begin();
  return found;
}

}  // namespace hillstar
