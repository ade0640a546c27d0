#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hillstar/error.h"
#include "model/synth.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;

// The numbers in which the two geometries differ.
struct Geometry {
  int64_t vocab, hidden, intermediate, moe_intermediate, layers, dense_layers, heads;
  int64_t q_lora, qk_nope, v_dim, experts, experts_per_token;
  int64_t index_heads, index_topk, index_offset;
  int64_t max_positions;
  double rope_theta;
  int64_t first_added;  // id of <|endoftext|>, the first of the added tokens
};

// GLM-5.2's config.json.
constexpr Geometry kGlm52 = {154880, 6144, 12288, 2048, 78,   3, 64,      2048, 192,
                             256,    256,  8,     32,   2048, 3, 1048576, 8e6,  154820};
// models/pocket/config.json.
constexpr Geometry kPocket = {8192, 384, 1024, 128, 6,   1, 8,     192, 64,
                              128,  32,  4,    8,   256, 2, 16384, 1e6, 0};

// Where two geometries agree.
constexpr int64_t kKvLora = 512, kQkRope = 64, kIndexDim = 128, kIndexFreq = 4;

constexpr const char* kControlTokens[] = {
    "<|endoftext|>", "[MASK]",     "[gMASK]",  "[sMASK]",       "<sop>",
    "<eop>",         "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"};
constexpr const char* kMarkTokens[] = {
    "<think>",          "</think>",  "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<arg_key>", "</arg_key>",  "<arg_value>",  "</arg_value>"};
// Places of <|endoftext|>, <|user|> and <|observation|> in kControlTokens.
constexpr int64_t kEndTokens[] = {0, 7, 9};

const Geometry& FindGeometry(const std::string& name) {
  if (name == "glm-5.2") return kGlm52;
  if (name == "pocket") return kPocket;
  throw Error(ErrorCode::kUsage,
              fmt::format("there is no geometry \"{}\"; glm-5.2 and pocket exist", name));
}

struct LayerCounts {
  int64_t layers, dense;
};

LayerCounts CountLayers(const SynthJob& job, const Geometry& g) {
  const int64_t layers = job.num_layers == 0 ? g.layers : job.num_layers;
  const int64_t geometry_dense = layers >= g.layers ? g.dense_layers : 1;
  const int64_t dense = job.num_dense_layers < 0 ? geometry_dense : job.num_dense_layers;
  if (layers < 1 || layers > g.layers || dense > layers) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} layers with {} dense ones cannot be; {} has 1 to {}", layers, dense,
                            job.geometry, g.layers));
  }
  return {layers, dense};
}

// Layers 0 to offset - 1 and then every fourth run the indexer; the others use its selection.
Json IndexerTypes(const Geometry& g, int64_t layers) {
  Json types = Json::array();
  for (int64_t i = 0; i < layers; ++i) {
    const bool full = std::max<int64_t>(i - g.index_offset + 1, 0) % kIndexFreq == 0;
    types.push_back(full ? "full" : "shared");
  }
  return types;
}

// The text that stands for a byte in a byte-level vocabulary: printable bytes for themselves, the
// others, in order, for U+0100 and on.
std::string ByteText(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  int code = byte;
  if (!printable(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, char(code));
  return {char(0xC0 | (code >> 6)), char(0x80 | (code & 0x3F))};
}

}  // namespace

std::string SynthConfigJson(const SynthJob& job) {
  const Geometry& g = FindGeometry(job.geometry);
  const LayerCounts counts = CountLayers(job, g);
  Json eos = Json::array();
  for (int64_t place : kEndTokens) eos.push_back(g.first_added + place);
  Json config = {
      {"architectures", {"GlmMoeDsaForCausalLM"}},
      {"model_type", "glm_moe_dsa"},
      {"vocab_size", g.vocab},
      {"hidden_size", g.hidden},
      {"intermediate_size", g.intermediate},
      {"moe_intermediate_size", g.moe_intermediate},
      {"num_hidden_layers", counts.layers},
      {"first_k_dense_replace", counts.dense},
      {"num_attention_heads", g.heads},
      {"num_key_value_heads", g.heads},
      {"q_lora_rank", g.q_lora},
      {"kv_lora_rank", kKvLora},
      {"qk_nope_head_dim", g.qk_nope},
      {"qk_rope_head_dim", kQkRope},
      {"qk_head_dim", g.qk_nope + kQkRope},
      {"v_head_dim", g.v_dim},
      {"n_routed_experts", g.experts},
      {"num_experts_per_tok", g.experts_per_token},
      {"n_shared_experts", 1},
      {"n_group", 1},
      {"topk_group", 1},
      {"norm_topk_prob", true},
      {"routed_scaling_factor", 2.5},
      {"scoring_func", "sigmoid"},
      {"topk_method", "noaux_tc"},
      {"index_topk", g.index_topk},
      {"index_head_dim", kIndexDim},
      {"index_n_heads", g.index_heads},
      {"index_topk_freq", kIndexFreq},
      {"index_skip_topk_offset", g.index_offset},
      {"indexer_types", IndexerTypes(g, counts.layers)},
      {"indexer_rope_interleave", true},
      {"rope_interleave", true},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", g.rope_theta}}},
      {"rms_norm_eps", 1e-5},
      {"max_position_embeddings", job.max_positions > 0 ? job.max_positions : g.max_positions},
      {"tie_word_embeddings", false},
      {"attention_bias", false},
      {"hidden_act", "silu"},
      {"num_nextn_predict_layers", job.with_mtp ? 1 : 0},
      {"eos_token_id", eos},
      {"pad_token_id", g.first_added}};
  return config.dump(1) + "\n";
}

std::string SynthTokenizerJson(const SynthJob& job) {
  const Geometry& g = FindGeometry(job.geometry);
  std::vector<std::string> added(std::begin(kControlTokens), std::end(kControlTokens));
  added.insert(added.end(), std::begin(kMarkTokens), std::end(kMarkTokens));
  const int64_t num_control = std::ssize(kControlTokens);
  Json added_tokens = Json::array();
  nlohmann::json vocab = nlohmann::json::object();  // Json finds a key by walking all before it
  for (int64_t i = 0; i < std::ssize(added); ++i) {
    added_tokens.push_back({{"id", g.first_added + i},
                            {"content", added[size_t(i)]},
                            {"single_word", false},
                            {"lstrip", false},
                            {"rstrip", false},
                            {"normalized", false},
                            {"special", i < num_control}});
  }
  const int64_t end_added = g.first_added + std::ssize(added);
  for (int64_t id = 0, plain = 0; id < g.vocab; ++id) {
    if (id >= g.first_added && id < end_added) continue;
    const std::string text =
        plain < 256 ? ByteText(int(plain)) : ByteText(' ') + fmt::format("w{}", id);
    vocab[text] = id;
    ++plain;
  }
  const Json split = {
      {"type", "Split"},
      {"pattern",
       {{"Regex", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                  R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  Json tokenizer = {{"version", "1.0"},
                    {"added_tokens", std::move(added_tokens)},
                    {"normalizer", nullptr},
                    {"pre_tokenizer",
                     {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level})}}},
                    {"post_processor", nullptr},
                    {"decoder", byte_level},
                    {"model",
                     {{"type", "BPE"},
                      {"ignore_merges", false},
                      {"byte_fallback", false},
                      {"vocab", nullptr},
                      {"merges", Json::array()}}}};
  std::string text = tokenizer.dump() + "\n";
  const std::string place = "\"vocab\":null";
  return text.replace(text.find(place), place.size(), "\"vocab\":" + vocab.dump());
}

}  // namespace hillstar
