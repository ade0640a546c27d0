#include "model/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/safetensors_test_files.h"
#include "ops/sample/sample.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

// GLM-5.2's configuration.
const Json& Glm() {
  static const Json config = Json::parse(R"({
    "architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "dtype": "bfloat16", "eos_token_id": [154820, 154827, 154829], "first_k_dense_replace": 3,
    "head_dim": 192, "hidden_act": "silu", "hidden_size": 6144, "index_head_dim": 128,
    "index_n_heads": 32, "index_share_for_mtp_iteration": true, "index_skip_topk_offset": 3,
    "index_topk": 2048, "index_topk_freq": 4, "index_topk_pattern": null,
    "indexer_rope_interleave": true, "initializer_range": 0.02, "intermediate_size": 12288,
    "kv_lora_rank": 512, "max_position_embeddings": 1048576, "model_type": "glm_moe_dsa",
    "moe_intermediate_size": 2048, "moe_router_dtype": "float32", "n_group": 1,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
    "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78,
    "num_key_value_heads": 64, "num_nextn_predict_layers": 1, "pad_token_id": 154820,
    "q_lora_rank": 2048, "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05, "rope_interleave": true,
    "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
    "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880})");
  return config;
}

ModelConfig Parse(const Json& config, std::string_view generation = "") {
  return ParseModelConfig(config.dump(), generation);
}

// The GLM configuration with one field changed.
Json With(const char* key, Json value) {
  Json config = Glm();
  config[key] = std::move(value);
  return config;
}
Json Without(const char* key) {
  Json config = Glm();
  config.erase(key);
  return config;
}

void ExpectRefused(ErrorCode code, const Json& config,
                   std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(config.dump().substr(0, 3000));
  ExpectError(code, parts, [&] { Parse(config); });
}

TEST(ModelConfig, ReadsGlm52) {
  const ModelConfig config = Parse(Glm(), R"({"eos_token_id":[154829,154820,5],"top_p":0.95})");
  EXPECT_EQ(config.model_type, "glm_moe_dsa");
  EXPECT_EQ(config.vocab_size, 154880);
  EXPECT_EQ(config.hidden_size, 6144);
  EXPECT_EQ(config.num_layers, 78);
  EXPECT_EQ(config.num_dense_layers, 3);
  EXPECT_EQ(config.intermediate_size, 12288);
  EXPECT_EQ(config.num_heads, 64);
  EXPECT_EQ(config.q_lora_rank, 2048);
  EXPECT_EQ(config.kv_lora_rank, 512);
  EXPECT_EQ(config.qk_nope_dim, 192);
  EXPECT_EQ(config.qk_rope_dim, 64);
  EXPECT_EQ(config.v_dim, 256);
  EXPECT_EQ(config.num_experts, 256);
  EXPECT_EQ(config.num_experts_per_token, 8);
  EXPECT_EQ(config.num_shared_experts, 1);
  EXPECT_EQ(config.moe_intermediate_size, 2048);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_EQ(config.routed_scaling_factor, 2.5f);
  EXPECT_EQ(config.rope_theta, 8e6);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.lora_norm_eps, 1e-6f);
  EXPECT_EQ(config.index_norm_eps, 1e-6f);
  EXPECT_EQ(config.max_positions, 1048576);
  EXPECT_EQ(config.index_num_heads, 32);
  EXPECT_EQ(config.index_head_dim, 128);
  EXPECT_EQ(config.index_topk, 2048);
  EXPECT_EQ(config.num_mtp_layers, 1);
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{154820, 154827, 154829, 5}));
  // Layers 0, 1, 2, 6, 10, ... 74: 21 full ones.
  ASSERT_EQ(config.layer_has_indexer.size(), 78u);
  int num_full = 0;
  for (int layer = 0; layer < 78; ++layer) {
    const bool full = layer < 2 || layer % 4 == 2;
    EXPECT_EQ(config.layer_has_indexer[size_t(layer)], full) << layer;
    num_full += full ? 1 : 0;
  }
  EXPECT_EQ(num_full, 21);
}

TEST(ModelConfig, EveryRequiredFieldIsNamedWhenMissingNullOrOfAnotherKind) {
  for (const char* key : {"model_type",
                          "vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "first_k_dense_replace",
                          "intermediate_size",
                          "num_attention_heads",
                          "q_lora_rank",
                          "kv_lora_rank",
                          "qk_nope_head_dim",
                          "qk_rope_head_dim",
                          "v_head_dim",
                          "n_routed_experts",
                          "num_experts_per_tok",
                          "n_shared_experts",
                          "moe_intermediate_size",
                          "routed_scaling_factor",
                          "rms_norm_eps",
                          "max_position_embeddings",
                          "index_n_heads",
                          "index_head_dim",
                          "index_topk"}) {
    ExpectRefused(ErrorCode::kBadFile, Without(key), {"config.json", key});
    for (const char* value : {"null", "[]", "{}", "true", "[1]"}) {
      ExpectRefused(ErrorCode::kBadFile, With(key, Json::parse(value)), {"config.json", key});
    }
    if (std::string_view(key) != "model_type") {
      ExpectRefused(ErrorCode::kBadFile, With(key, "8"), {"config.json", key});
    }
  }
  ExpectRefused(ErrorCode::kBadFile, Without("rope_parameters"), {"rope_theta"});
}

TEST(ModelConfig, IntegersOutOfRangeAreNamed) {
  const std::vector<std::pair<const char*, int64_t>> limits = {{"vocab_size", INT32_MAX},
                                                               {"hidden_size", 65536},
                                                               {"num_hidden_layers", 1024},
                                                               {"intermediate_size", 1 << 20},
                                                               {"num_attention_heads", 1024},
                                                               {"q_lora_rank", 65536},
                                                               {"kv_lora_rank", 512},
                                                               {"qk_nope_head_dim", 1024},
                                                               {"qk_rope_head_dim", 1024},
                                                               {"v_head_dim", 1024},
                                                               {"n_routed_experts", 4096},
                                                               {"moe_intermediate_size", 1 << 20},
                                                               {"max_position_embeddings", 1 << 24},
                                                               {"index_head_dim", 512},
                                                               {"index_topk", 1 << 24},
                                                               {"n_shared_experts", 64}};
  for (const auto& [key, high] : limits) {
    for (const Json& value : {Json(0), Json(-1), Json(high + 1), Json(INT64_MAX), Json(INT64_MIN),
                              Json(UINT64_MAX), Json(8.0), Json(8.5), Json(1e300)}) {
      ExpectRefused(ErrorCode::kBadFile, With(key, value), {"config.json", key});
    }
  }
  // As many tokens as a draw takes.
  EXPECT_EQ(Parse(With("vocab_size", kMaxDrawnLogits)).vocab_size, kMaxDrawnLogits);
  for (const int64_t high : {kMaxDrawnLogits + 1, int64_t{1} << 24, int64_t{INT32_MAX}}) {
    ExpectRefused(ErrorCode::kUnsupported, With("vocab_size", high),
                  {"config.json", "vocab_size " + std::to_string(high), "at most 1048576"});
  }
  ExpectRefused(ErrorCode::kBadFile, With("index_n_heads", 1025), {"index_n_heads"});
  ExpectRefused(ErrorCode::kBadFile, With("num_hidden_layers", 100000), {"num_hidden_layers"});
  for (const int bad : {-1, 79}) {
    ExpectRefused(ErrorCode::kBadFile, With("first_k_dense_replace", bad),
                  {"first_k_dense_replace"});
  }
  for (const int bad : {-1, 2}) {
    ExpectRefused(ErrorCode::kBadFile, With("num_nextn_predict_layers", bad),
                  {"num_nextn_predict_layers"});
  }
  EXPECT_EQ(Parse(With("num_nextn_predict_layers", 0)).num_mtp_layers, 0);
  EXPECT_EQ(Parse(Without("num_nextn_predict_layers")).num_mtp_layers, 0);
  EXPECT_EQ(Parse(With("first_k_dense_replace", 78)).num_dense_layers, 78);
}

TEST(ModelConfig, FieldsAreCheckedAgainstEachOther) {
  const auto bad = ErrorCode::kBadFile;
  ExpectRefused(bad, With("num_experts_per_tok", 257), {"num_experts_per_tok", "256"});
  ExpectRefused(bad, With("n_routed_experts", 7), {"num_experts_per_tok", "7"});
  ExpectRefused(bad, With("qk_rope_head_dim", 63), {"qk_rope_head_dim", "even"});
  ExpectRefused(bad, With("qk_head_dim", 255), {"qk_head_dim"});
  ExpectRefused(bad, With("qk_nope_head_dim", 1000), {"qk_nope_head_dim"});
  ExpectRefused(bad, With("index_head_dim", 48), {"qk_rope_head_dim", "index_head_dim"});
  ExpectRefused(ErrorCode::kUnsupported, With("index_head_dim", 100), {"index_head_dim 100"});
  ExpectRefused(bad, With("vocab_size", 154829), {"eos_token_id", "154829", "154828"});
  ExpectRefused(bad, With("eos_token_id", -1), {"eos_token_id"});
  ExpectRefused(bad, With("eos_token_id", "<|user|>"), {"eos_token_id"});
  ExpectRefused(bad, With("eos_token_id", Json::array({1, 2.5})), {"eos_token_id"});
  ExpectRefused(ErrorCode::kUnsupported, With("num_key_value_heads", 8), {"num_key_value_heads"});
  Json shared = With("n_shared_experts", 64);
  shared["moe_intermediate_size"] = 1 << 20;
  ExpectRefused(bad, shared, {"shared experts"});
  Json many_ids = Json::array();
  for (int i = 0; i < 65; ++i) many_ids.push_back(i);
  ExpectRefused(bad, With("eos_token_id", many_ids), {"end tokens"});
}

TEST(ModelConfig, RealNumbersOutOfRangeAreNamed) {
  for (const char* key : {"rms_norm_eps", "routed_scaling_factor"}) {
    for (const double value : {0.0, -1e-5, 1e300, -1e300, 1e-300}) {
      ExpectRefused(ErrorCode::kBadFile, With(key, value), {key});
    }
  }
  ExpectRefused(ErrorCode::kBadFile, With("rms_norm_eps", 0.1), {"rms_norm_eps"});
  ExpectRefused(ErrorCode::kBadFile, With("rms_norm_eps", 1), {"rms_norm_eps"});
  EXPECT_EQ(Parse(With("routed_scaling_factor", 1)).routed_scaling_factor, 1.0f);
}

TEST(ModelConfig, OtherModelsAreRefusedByName) {
  const auto unserved = ErrorCode::kUnsupported;
  for (const char* type : {"deepseek_v3", "deepseek_v32", "glm4_moe", "llama", "kimi_k2", ""}) {
    ExpectRefused(unserved, With("model_type", type), {type, "glm_moe_dsa"});
  }
  // A foreign configuration is named before its missing fields are.
  ExpectError(unserved, {"llama"}, [] { ParseModelConfig(R"({"model_type":"llama"})", ""); });
  const std::vector<std::pair<const char*, Json>> others = {{"hidden_act", "gelu"},
                                                            {"scoring_func", "softmax"},
                                                            {"topk_method", "greedy"},
                                                            {"n_group", 8},
                                                            {"topk_group", 4},
                                                            {"attention_bias", true},
                                                            {"tie_word_embeddings", true},
                                                            {"rope_interleave", false},
                                                            {"indexer_rope_interleave", false},
                                                            {"moe_router_dtype", "bfloat16"},
                                                            {"moe_layer_freq", 2},
                                                            {"n_group", Json::array()},
                                                            {"hidden_act", 7}};
  for (const auto& [key, value] : others) ExpectRefused(unserved, With(key, value), {key});
  for (const char* key :
       {"hidden_act", "scoring_func", "topk_method", "n_group", "topk_group", "attention_bias",
        "tie_word_embeddings", "rope_interleave", "indexer_rope_interleave", "moe_router_dtype",
        "head_dim", "num_key_value_heads", "qk_head_dim", "norm_topk_prob"}) {
    EXPECT_NO_THROW(Parse(Without(key))) << key;
    EXPECT_NO_THROW(Parse(With(key, nullptr))) << key;
  }
  ExpectRefused(ErrorCode::kBadFile, With("norm_topk_prob", 1), {"norm_topk_prob"});
  EXPECT_FALSE(Parse(With("norm_topk_prob", false)).norm_topk_prob);
}

TEST(ModelConfig, Rope) {
  const auto rope = [](const char* text) { return With("rope_parameters", Json::parse(text)); };
  EXPECT_EQ(Parse(rope(R"({"rope_theta":1e4})")).rope_theta, 1e4);
  Json top = Without("rope_parameters");
  top["rope_theta"] = 1000000;
  top["rope_scaling"] = nullptr;
  EXPECT_EQ(Parse(top).rope_theta, 1e6);
  top["rope_scaling"] = {{"type", "yarn"}, {"factor", 4}};
  ExpectRefused(ErrorCode::kUnsupported, top, {"rope_scaling", "type", "yarn"});
  top["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_EQ(Parse(top).rope_theta, 1e6);
  EXPECT_EQ(Parse(With("rope_theta", 8e6)).rope_theta, 8e6);
  ExpectRefused(ErrorCode::kBadFile, With("rope_theta", 1e4), {"rope_theta", "10000"});
  ExpectRefused(ErrorCode::kUnsupported, rope(R"({"rope_theta":1e4,"rope_type":"yarn"})"),
                {"rope_parameters", "rope_type", "yarn"});
  ExpectRefused(ErrorCode::kUnsupported, rope(R"({"rope_theta":1e4,"partial_rotary_factor":0.5})"),
                {"partial_rotary_factor"});
  for (const char* theta : {"0", "-1", "\"1e4\"", "[]", "true"}) {
    ExpectRefused(ErrorCode::kBadFile, rope(fmt::format(R"({{"rope_theta":{}}})", theta).c_str()),
                  {"rope_theta"});
  }
  ExpectRefused(ErrorCode::kBadFile, rope("[]"), {"rope_parameters"});
  ExpectRefused(ErrorCode::kBadFile, rope("{}"), {"rope_theta"});
}

TEST(ModelConfig, IndexerTypes) {
  Json config = With("num_hidden_layers", 4);
  config["indexer_types"] = {"full", "shared", "shared", "full"};
  const std::vector<bool> mixed = {true, false, false, true};
  EXPECT_EQ(Parse(config).layer_has_indexer, mixed);
  config["indexer_types"] = {"full", "shared", "shared"};
  ExpectRefused(ErrorCode::kBadFile, config, {"indexer_types", "4"});
  config["indexer_types"] = {"full", "shared", "shared", "full", "full"};
  ExpectRefused(ErrorCode::kBadFile, config, {"indexer_types", "4"});
  config["indexer_types"] = {"shared", "full", "full", "full"};
  ExpectRefused(ErrorCode::kBadFile, config, {"layer 0 marked shared"});
  config["indexer_types"] = {"full", "sparse", "full", "full"};
  ExpectRefused(ErrorCode::kBadFile, config, {"indexer_types", "sparse"});
  config["indexer_types"] = {"full", 1, "full", "full"};
  ExpectRefused(ErrorCode::kBadFile, config, {"indexer_types"});
  config["indexer_types"] = "full";
  ExpectRefused(ErrorCode::kBadFile, config, {"indexer_types"});

  config.erase("indexer_types");
  config["index_topk_pattern"] = "FSSF";
  EXPECT_EQ(Parse(config).layer_has_indexer, mixed);
  for (const Json& pattern : {Json("FSS"), Json("FSSFF"), Json("FSXF"), Json(7), Json("")}) {
    config["index_topk_pattern"] = pattern;
    ExpectRefused(ErrorCode::kBadFile, config, {"index_topk_pattern", "4"});
  }
  config["index_topk_pattern"] = "SFFF";
  ExpectRefused(ErrorCode::kBadFile, config, {"layer 0 marked shared"});

  config.erase("index_topk_pattern");
  config.erase("index_topk_freq");
  config.erase("index_skip_topk_offset");
  EXPECT_EQ(Parse(config).layer_has_indexer, (std::vector<bool>(4, true)));
  config["index_topk_freq"] = 3;  // the offset is 2 by default: layers 0, 1, 4, 7, ...
  EXPECT_EQ(Parse(config).layer_has_indexer, (std::vector<bool>{true, true, false, false}));
  config["index_skip_topk_offset"] = 0;
  ExpectRefused(ErrorCode::kBadFile, config, {"layer 0 marked shared"});
  config["index_topk_freq"] = 0;
  ExpectRefused(ErrorCode::kBadFile, config, {"index_topk_freq"});
}

TEST(ModelConfig, NoIndexerAtAll) {
  Json config = With("index_n_heads", 0);
  config.erase("index_topk");
  config.erase("index_head_dim");
  EXPECT_EQ(Parse(config).index_num_heads, 0);
  EXPECT_EQ(Parse(config).layer_has_indexer, std::vector<bool>(78, false));
}

TEST(ModelConfig, MlpLayerTypes) {
  Json config = With("num_hidden_layers", 3);
  config["first_k_dense_replace"] = 1;
  config["mlp_layer_types"] = {"dense", "sparse", "sparse"};
  EXPECT_EQ(Parse(config).num_dense_layers, 1);
  config["first_k_dense_replace"] = 2;
  ExpectRefused(ErrorCode::kBadFile, config, {"mlp_layer_types", "first_k_dense_replace"});
  config.erase("first_k_dense_replace");
  EXPECT_EQ(Parse(config).num_dense_layers, 1);
  config["mlp_layer_types"] = {"sparse", "dense", "sparse"};
  ExpectRefused(ErrorCode::kUnsupported, config, {"mlp_layer_types", "layer 1"});
  config["mlp_layer_types"] = {"dense", "sparse"};
  ExpectRefused(ErrorCode::kBadFile, config, {"mlp_layer_types"});
  config["mlp_layer_types"] = {"dense", "sparse", 7};
  ExpectRefused(ErrorCode::kBadFile, config, {"mlp_layer_types"});
}

TEST(ModelConfig, QuantisationConfig) {
  const auto with = [](const char* text) { return With("quantization_config", Json::parse(text)); };
  EXPECT_NO_THROW(Parse(with("null")));
  EXPECT_NO_THROW(Parse(with(R"({"quant_method":"fp8","weight_block_size":[128,128]})")));
  EXPECT_NO_THROW(Parse(with(R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8",
                                 "weight_block_size":[128,128],"modules_to_not_convert":["a"]})")));
  const auto unserved = ErrorCode::kUnsupported;
  ExpectRefused(unserved, with(R"({"quant_method":"awq","bits":4})"), {"quant_method", "awq"});
  ExpectRefused(unserved, with(R"({"quant_method":"modelopt"})"), {"quant_method", "modelopt"});
  ExpectRefused(unserved,
                with(R"({"quant_method":"fp8","fmt":"e5m2","weight_block_size":[128,128]})"),
                {"fmt", "e5m2"});
  ExpectRefused(unserved, with(R"({"quant_method":"fp8","weight_block_size":[64,128]})"),
                {"weight_block_size"});
  ExpectRefused(ErrorCode::kBadFile, with(R"({"quant_method":"fp8"})"), {"weight_block_size"});
  ExpectRefused(ErrorCode::kBadFile, with("{}"), {"quant_method"});
  ExpectRefused(ErrorCode::kBadFile, with("[]"), {"quantization_config"});
}

TEST(ModelConfig, EosIds) {
  EXPECT_EQ(Parse(With("eos_token_id", 7)).eos_ids, std::vector<int32_t>{7});
  EXPECT_TRUE(Parse(Without("eos_token_id")).eos_ids.empty());
  EXPECT_EQ(Parse(Without("eos_token_id"), R"({"eos_token_id":3})").eos_ids,
            std::vector<int32_t>{3});
  EXPECT_EQ(Parse(With("eos_token_id", Json::array({4, 4})), R"({"eos_token_id":null})").eos_ids,
            std::vector<int32_t>{4});
  for (const char* text : {"{", "[]", R"({"eos_token_id":154880})", R"({"eos_token_id":"x"})",
                           R"({"eos_token_id":[[1]]})", R"({"eos_token_id":1.0})"}) {
    ExpectError(ErrorCode::kBadFile, {"generation_config.json"}, [&] { Parse(Glm(), text); });
  }
}

TEST(ModelConfig, AnyOtherTextIsANamedError) {
  ExpectError(ErrorCode::kNotFound, {"config.json"}, [] { ParseModelConfig("", ""); });
  const std::string deep(10000, '[');
  for (const std::string& text :
       {std::string("{"), std::string("null"), std::string("[]"), std::string("7"),
        std::string("\"x\""), std::string("{}"), deep, R"({"a":)" + deep,
        std::string("{\"vocab_size\":1e999}"), std::string("{\"model_type\":1,\"model_type\":2}"),
        std::string("\xff\xfe{}"), std::string("{}\0", 3)}) {
    ExpectError(ErrorCode::kBadFile, {"config.json"}, [&] { ParseModelConfig(text, ""); });
  }
}

// Each value of the configuration replaced by values of every kind: parsed or an Error.
TEST(ModelConfig, EveryFieldTakesEveryKindOfValueWithoutAnotherException) {
  const Json config = Glm();
  const std::vector<Json> values = {nullptr,
                                    true,
                                    false,
                                    0,
                                    1,
                                    -1,
                                    INT64_MIN,
                                    UINT64_MAX,
                                    0.5,
                                    -0.0,
                                    1e308,
                                    5e-324,
                                    "",
                                    "full",
                                    std::string(2000, 'x'),
                                    Json::array(),
                                    Json::array({1, "a", nullptr}),
                                    Json::object(),
                                    Json{{"rope_theta", Json::array()}},
                                    Json{{"quant_method", 1}}};
  int num_refused = 0;
  for (const auto& [key, old] : config.items()) {
    for (const Json& value : values) {
      try {
        Parse(With(key.c_str(), value));
      } catch (const Error& e) {
        ++num_refused;
        EXPECT_LT(std::string(e.what()).size(), 500u);
      }
    }
  }
  EXPECT_GT(num_refused, 500);
}

TEST(ModelConfig, ReadsTheDemoModel) {
  const std::filesystem::path demo = HILLSTAR_DEMO_CHECKPOINT;
  if (demo.empty()) GTEST_SKIP() << "HILLSTAR_DEMO_CHECKPOINT is not set";
  const auto read = [&](const char* name) {
    std::ifstream file(demo / "checkpoint" / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const ModelConfig config = ParseModelConfig(read("config.json"), read("generation_config.json"));
  EXPECT_EQ(config.num_layers, 6);
  EXPECT_EQ(config.layer_has_indexer, (std::vector<bool>{true, true, false, false, false, true}));
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{0, 7, 9}));
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.num_mtp_layers, 1);
}

}  // namespace
}  // namespace hillstar
