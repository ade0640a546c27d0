// Which tensors a folder of shards holds, and where: duplicates and model.safetensors.index.json
// settled, names brought to the standard prefix. Views into the shards' headers; the shards must
// outlive them. Pure functions.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/safetensors.h"

namespace hillstar {

// Where a tensor lies.
struct TensorPlace {
  const SafetensorsFile* shard = nullptr;
  const SafetensorsTensor* tensor = nullptr;
};

// Tensor name -> shard file name, from the text of model.safetensors.index.json.
// Errors: kBadFile for malformed JSON, no weight_map, and file names with a folder in them.
std::unordered_map<std::string, std::string> ParseShardIndex(std::string_view json);

// Every tensor of the shards by its stored name, in the order of the shards.
// `index` may be empty: no index. Where it maps a name, only that shard's copy counts, in whatever
// order the shards come. Errors: kBadFile, naming tensor and shards, for a name in two shards that
// the index does not settle, a shard of the index that is not there, and a tensor that is not in
// the shard that the index names.
std::vector<TensorPlace> MergeShards(const std::vector<std::unique_ptr<SafetensorsFile>>& shards,
                                     const std::unordered_map<std::string, std::string>& index);

// How the checkpoint's names differ from the standard ones: `model.` + X is stored as
// `model_prefix` + X, `lm_head.weight` as `head_name`.
struct NamePrefix {
  std::string model_prefix = "model.";
  std::string head_name = "lm_head.weight";
  // The standard name of a stored one; names outside the prefix stay as they are.
  std::string Standard(std::string_view stored) const;
};

// Found by the embedding's name. Errors: kBadFile if two prefixes claim to be the model.
NamePrefix FindNamePrefix(const std::vector<TensorPlace>& places);

}  // namespace hillstar
