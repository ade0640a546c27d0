#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/json_scan.h"
#include "hillstar/error.h"
#include "ops/sample/sample.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

// Real configurations have 2 KB, or 200 KB with a long list of unquantised modules.
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// Limits far above any model of the family, low enough for every product of two or three of them
// to stay inside int64 and for a hostile file not to ask for absurd allocations.
constexpr int64_t kMaxHidden = 65536;
constexpr int64_t kMaxIntermediate = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxLatent = 512;        // the attention's integer sums are exact up to here
constexpr int64_t kMaxIndexHeadDim = 512;  // likewise the indexer's
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxSharedExperts = 64;
constexpr int64_t kMaxPositions = int64_t{1} << 24;
constexpr double kMaxEps = 0.1;
constexpr size_t kMaxEosIds = 64;
constexpr int64_t kFp8Block = 128;

[[noreturn]] void Bad(const std::string& message) { throw Error(ErrorCode::kBadFile, message); }
[[noreturn]] void Unserved(const std::string& message) {
  throw Error(ErrorCode::kUnsupported, message);
}

// A value for messages, shortened.
std::string Text(const Json& value) {
  if (value.is_string()) return Quoted(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  return value.dump();
}

// One JSON object of a file, by key. Keeps references: the document must outlive it.
class Fields {
 public:
  // `where` is the file's name, or with the object's key, e.g. "config.json: rope_parameters".
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Bad(fmt::format("{} is {}, not an object.", where_, Text(object)));
  }

  // Null where the key is absent or null.
  const Json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  const Json& Require(const char* key) const {
    const Json* value = Find(key);
    if (!value) Bad(fmt::format("{} lacks {}.", where_, key));
    return *value;
  }

  int64_t Integer(const char* key, int64_t low, int64_t high) const {
    return ToInteger(Require(key), key, low, high);
  }
  int64_t Integer(const char* key, int64_t low, int64_t high, int64_t absent) const {
    const Json* value = Find(key);
    return value ? ToInteger(*value, key, low, high) : absent;
  }

  // A finite number above 0.
  double Positive(const char* key) const {
    const Json& value = Require(key);
    if (!value.is_number()) Wrong(key, value, "a number");
    const double number = value.get<double>();
    if (!std::isfinite(number) || number <= 0) Wrong(key, value, "a finite number above 0");
    return number;
  }

  bool Bool(const char* key, bool absent) const {
    const Json* value = Find(key);
    if (value && !value->is_boolean()) Wrong(key, *value, "true or false");
    return value ? value->get<bool>() : absent;
  }

  // Absent keys pass: every implementation of the family takes the served value then.
  void OnlyServed(const char* key, const Json& served) const {
    const Json* value = Find(key);
    if (value && *value != served) {
      Unserved(
          fmt::format("{} has {} {}; only {} is served.", where_, key, Text(*value), Text(served)));
    }
  }

  [[noreturn]] void Wrong(const char* key, const Json& value, const std::string& right) const {
    Bad(fmt::format("{} has {} {}, but it must be {}.", where_, key, Text(value), right));
  }

  int64_t ToInteger(const Json& value, const char* key, int64_t low, int64_t high) const {
    const std::string right = fmt::format("an integer from {} to {}", low, high);
    if (!value.is_number_integer()) Wrong(key, value, right);
    const bool too_large = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(high);
    if (too_large || value.get<int64_t>() < low || value.get<int64_t>() > high) {
      Wrong(key, value, right);
    }
    return value.get<int64_t>();
  }

  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

void CheckArchitecture(const Fields& fields, ModelConfig& config) {
  const Json& type = fields.Require("model_type");
  if (!type.is_string()) fields.Wrong("model_type", type, "a text");
  config.model_type = type.get<std::string>();
  if (config.model_type != "glm_moe_dsa") {
    Unserved(fmt::format("The model is of type {}; only glm_moe_dsa (GLM-5 family) is served.",
                         Quoted(config.model_type)));
  }
  fields.OnlyServed("hidden_act", "silu");
  fields.OnlyServed("scoring_func", "sigmoid");
  fields.OnlyServed("topk_method", "noaux_tc");
  fields.OnlyServed("moe_router_dtype", "float32");
  fields.OnlyServed("n_group", 1);
  fields.OnlyServed("topk_group", 1);
  fields.OnlyServed("moe_layer_freq", 1);
  fields.OnlyServed("attention_bias", false);
  fields.OnlyServed("tie_word_embeddings", false);
  fields.OnlyServed("rope_interleave", true);
  fields.OnlyServed("indexer_rope_interleave", true);
}

void ReadQuantisation(const Fields& fields) {
  const Json* value = fields.Find("quantization_config");
  if (!value) return;
  const Fields quantisation(*value, fields.where() + ": quantization_config");
  quantisation.Require("quant_method");
  quantisation.OnlyServed("quant_method", "fp8");
  quantisation.OnlyServed("fmt", "e4m3");
  quantisation.Require("weight_block_size");
  quantisation.OnlyServed("weight_block_size", Json::array({kFp8Block, kFp8Block}));
}

// first_k_dense_replace, or the newer list mlp_layer_types.
int64_t ReadDenseLayers(const Fields& fields, int64_t num_layers) {
  const Json* types = fields.Find("mlp_layer_types");
  if (!types) return fields.Integer("first_k_dense_replace", 0, num_layers);
  if (!types->is_array() || int64_t(types->size()) != num_layers) {
    fields.Wrong("mlp_layer_types", *types, fmt::format("a list of {} layer types", num_layers));
  }
  int64_t num_dense = 0;
  for (int64_t i = 0; i < num_layers; ++i) {
    const Json& type = (*types)[size_t(i)];
    if (type != "dense" && type != "sparse") {
      fields.Wrong("mlp_layer_types", type, "a list of 'dense' and 'sparse'");
    }
    if (type == "sparse") continue;
    if (num_dense != i) {
      Unserved(
          fmt::format("{} has a dense layer {} after a sparse one in mlp_layer_types; dense "
                      "layers are served at the start only.",
                      fields.where(), i));
    }
    ++num_dense;
  }
  if (fields.Integer("first_k_dense_replace", 0, num_layers, num_dense) != num_dense) {
    Bad(
        fmt::format("{} has {} dense layers in mlp_layer_types, but another "
                    "first_k_dense_replace.",
                    fields.where(), num_dense));
  }
  return num_dense;
}

void ReadSizes(const Fields& fields, ModelConfig& config) {
  config.vocab_size = fields.Integer("vocab_size", 1, std::numeric_limits<int32_t>::max());
  if (config.vocab_size > kMaxDrawnLogits) {
    Unserved(fmt::format("{} has vocab_size {}; at most {} is served.", fields.where(),
                         config.vocab_size, kMaxDrawnLogits));
  }
  config.hidden_size = fields.Integer("hidden_size", 1, kMaxHidden);
  config.num_layers = fields.Integer("num_hidden_layers", 1, kMaxLayers);
  config.num_dense_layers = ReadDenseLayers(fields, config.num_layers);
  config.intermediate_size = fields.Integer("intermediate_size", 1, kMaxIntermediate);
  config.max_positions = fields.Integer("max_position_embeddings", 1, kMaxPositions);
  config.num_mtp_layers = fields.Integer("num_nextn_predict_layers", 0, 1, 0);
  const double eps = fields.Positive("rms_norm_eps");
  config.rms_norm_eps = float(eps);
  if (eps >= kMaxEps || config.rms_norm_eps <= 0) {
    fields.Wrong("rms_norm_eps", fields.Require("rms_norm_eps"), "between 0 and 0.1");
  }
}

void ReadAttention(const Fields& fields, ModelConfig& config) {
  config.num_heads = fields.Integer("num_attention_heads", 1, kMaxHeads);
  const int64_t num_kv_heads =
      fields.Integer("num_key_value_heads", 1, kMaxHeads, config.num_heads);
  if (num_kv_heads != config.num_heads) {
    Unserved(
        fmt::format("{} has num_key_value_heads {} and num_attention_heads {}; latent "
                    "attention has them equal.",
                    fields.where(), num_kv_heads, config.num_heads));
  }
  config.q_lora_rank = fields.Integer("q_lora_rank", 1, kMaxHidden);
  config.kv_lora_rank = fields.Integer("kv_lora_rank", 1, kMaxLatent);
  config.qk_nope_dim = fields.Integer("qk_nope_head_dim", 1, kMaxHeadDim);
  config.qk_rope_dim = fields.Integer("qk_rope_head_dim", 2, kMaxLatent);
  config.v_dim = fields.Integer("v_head_dim", 1, kMaxHeadDim);
  if (config.qk_rope_dim % 2 != 0) {
    fields.Wrong("qk_rope_head_dim", config.qk_rope_dim, "even");
  }
  if (config.qk_dim() > kMaxHeadDim ||
      fields.Integer("qk_head_dim", 1, kMaxHeadDim, config.qk_dim()) != config.qk_dim()) {
    Bad(
        fmt::format("{} has qk_nope_head_dim {} and qk_rope_head_dim {}, which do not add up to "
                    "its qk_head_dim or to at most {}.",
                    fields.where(), config.qk_nope_dim, config.qk_rope_dim, kMaxHeadDim));
  }
}

void ReadExperts(const Fields& fields, ModelConfig& config) {
  config.num_experts = fields.Integer("n_routed_experts", 1, kMaxExperts);
  config.num_experts_per_token = fields.Integer("num_experts_per_tok", 1, config.num_experts);
  config.num_shared_experts = fields.Integer("n_shared_experts", 1, kMaxSharedExperts);
  config.moe_intermediate_size = fields.Integer("moe_intermediate_size", 1, kMaxIntermediate);
  if (config.shared_intermediate() > kMaxIntermediate) {
    Bad(fmt::format("{} has {} shared experts of moe_intermediate_size {}, more than {} in all.",
                    fields.where(), config.num_shared_experts, config.moe_intermediate_size,
                    kMaxIntermediate));
  }
  config.norm_topk_prob = fields.Bool("norm_topk_prob", true);
  config.routed_scaling_factor = float(fields.Positive("routed_scaling_factor"));
  if (!std::isfinite(config.routed_scaling_factor) || config.routed_scaling_factor <= 0) {
    fields.Wrong("routed_scaling_factor", fields.Require("routed_scaling_factor"),
                 "inside float's range");
  }
}

// rope_theta stands in rope_parameters, or in older files at the top beside rope_scaling.
void ReadRope(const Fields& fields, ModelConfig& config) {
  bool found = false;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* value = fields.Find(key);
    if (!value) continue;
    const Fields rope(*value, fields.where() + ": " + key);
    rope.OnlyServed("rope_type", "default");
    rope.OnlyServed("type", "default");
    rope.OnlyServed("partial_rotary_factor", 1.0);
    if (!rope.Find("rope_theta")) continue;
    const double theta = rope.Positive("rope_theta");
    if (found && theta != config.rope_theta) {
      Bad(fmt::format("{} has two values of rope_theta, {} and {}.", fields.where(),
                      config.rope_theta, theta));
    }
    config.rope_theta = theta;
    found = true;
  }
  if (found && !fields.Find("rope_theta")) return;
  const double theta = fields.Positive("rope_theta");
  if (found && theta != config.rope_theta) {
    Bad(fmt::format("{} has two values of rope_theta, {} and {}.", fields.where(),
                    config.rope_theta, theta));
  }
  config.rope_theta = theta;
}

// One a layer: true for full. From the list, the pattern, or frequency and offset, in this order.
std::vector<bool> ReadIndexerTypes(const Fields& fields, int64_t num_layers) {
  std::vector<bool> full;
  if (const Json* types = fields.Find("indexer_types")) {
    if (!types->is_array() || int64_t(types->size()) != num_layers) {
      fields.Wrong("indexer_types", *types, fmt::format("a list of {} layer types", num_layers));
    }
    for (const Json& type : *types) {
      if (type != "full" && type != "shared") {
        fields.Wrong("indexer_types", type, "a list of 'full' and 'shared'");
      }
      full.push_back(type == "full");
    }
  } else if (const Json* pattern = fields.Find("index_topk_pattern")) {
    const std::string right = fmt::format("a text of {} letters F or S", num_layers);
    if (!pattern->is_string()) fields.Wrong("index_topk_pattern", *pattern, right);
    const std::string& letters = pattern->get_ref<const std::string&>();
    if (int64_t(letters.size()) != num_layers ||
        letters.find_first_not_of("FS") != std::string::npos) {
      fields.Wrong("index_topk_pattern", *pattern, right);
    }
    for (const char letter : letters) full.push_back(letter == 'F');
  } else {
    const int64_t freq = fields.Integer("index_topk_freq", 1, kMaxLayers, 1);
    const int64_t offset = fields.Integer("index_skip_topk_offset", 0, kMaxLayers, 2);
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      full.push_back(std::max<int64_t>(layer - offset + 1, 0) % freq == 0);
    }
  }
  if (!full[0]) {
    Bad(
        fmt::format("{} has layer 0 marked shared, but no full layer comes before it whose "
                    "selection it could reuse.",
                    fields.where()));
  }
  return full;
}

void ReadIndexer(const Fields& fields, ModelConfig& config) {
  config.index_num_heads = fields.Integer("index_n_heads", 0, kMaxHeads);
  if (config.index_num_heads == 0) {
    config.layer_has_indexer.assign(size_t(config.num_layers), false);
    return;
  }
  config.index_head_dim = fields.Integer("index_head_dim", 1, kMaxIndexHeadDim);
  config.index_topk = fields.Integer("index_topk", 1, kMaxPositions);
  if (config.index_head_dim % 16 != 0) {  // its planes are written in vectors of 16
    Unserved(fmt::format("{} has index_head_dim {}; only multiples of 16 are served.",
                         fields.where(), config.index_head_dim));
  }
  if (config.qk_rope_dim > config.index_head_dim) {
    Bad(
        fmt::format("{} has qk_rope_head_dim {} above index_head_dim {}, whose first part it "
                    "rotates.",
                    fields.where(), config.qk_rope_dim, config.index_head_dim));
  }
  config.layer_has_indexer = ReadIndexerTypes(fields, config.num_layers);
}

// Adds a file's end tokens to config.eos_ids, each once.
void AddEosIds(const Fields& fields, ModelConfig& config) {
  const Json* value = fields.Find("eos_token_id");
  if (!value) return;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& item : list) {
    const auto id = int32_t(fields.ToInteger(item, "eos_token_id", 0, config.vocab_size - 1));
    if (std::find(config.eos_ids.begin(), config.eos_ids.end(), id) != config.eos_ids.end()) {
      continue;
    }
    if (config.eos_ids.size() == kMaxEosIds) {
      Bad(fmt::format("{} has more than {} end tokens.", fields.where(), kMaxEosIds));
    }
    config.eos_ids.push_back(id);
  }
}

}  // namespace

ModelConfig ParseModelConfig(std::string_view config_json, std::string_view generation_json) {
  if (config_json.empty()) {
    throw Error(ErrorCode::kNotFound, "The model has no config.json, or it is empty.");
  }
  const Json document = ParseJson(config_json, "config.json", kMaxConfigBytes);
  const Fields fields(document, "config.json");
  ModelConfig config;
  CheckArchitecture(fields, config);
  ReadQuantisation(fields);
  ReadSizes(fields, config);
  ReadAttention(fields, config);
  ReadExperts(fields, config);
  ReadRope(fields, config);
  ReadIndexer(fields, config);
  AddEosIds(fields, config);
  if (!generation_json.empty()) {
    const Json generation = ParseJson(generation_json, "generation_config.json", kMaxConfigBytes);
    AddEosIds(Fields(generation, "generation_config.json"), config);
  }
  return config;
}

}  // namespace hillstar
