// Makes grammars of the input, as a JSON schema, as GBNF or as a tool's parameters, and walks
// through them by their masks: what is allowed has to be accepted, and the end has to be in reach.
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/check.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// All bytes, some longer tokens, and the tags of calls.
class SmallTokenizer final : public Tokenizer {
 public:
  SmallTokenizer() {
    for (int byte = 0; byte < 256; ++byte) tokens_.push_back(std::string(1, char(byte)));
    for (const char* text :
         {"{\"", "\":",  "\": \"", "\",\"",    "},",         "}}",    "[[",
          "]]",  "true", "null",   "aa",       "ab",         "aaaa",  "abcd",
          "00",  "12",   "1.",     "e+",       "\\u",        "\\ud8", "\n  ",
          "é",   "\xC3", "日本",   "\xE6\x97", "\x9C\xAC\"", "</",    "</arg_value>"}) {
      tokens_.push_back(text);
    }
    for (const char* tag : {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                            "</arg_value>", "<think>", "</think>"}) {
      added_.emplace(tag, int32_t(tokens_.size()));
      tokens_.push_back(tag);
    }
  }
  std::vector<int32_t> Encode(std::string_view, AddedTokens) const override { return {}; }
  std::vector<int32_t> EncodeMarked(std::string_view, std::span<const TextRange>) const override {
    return {};
  }
  std::string Decode(std::span<const int32_t>, bool) const override { return {}; }
  std::string_view TokenBytes(int32_t id) const override { return tokens_[size_t(id)]; }
  bool IsSpecial(int32_t id) const override { return id + 8 >= vocab_size(); }
  std::optional<int32_t> AddedTokenId(std::string_view content) const override {
    const auto found = added_.find(content);
    return found != added_.end() ? std::optional(found->second) : std::nullopt;
  }
  int64_t vocab_size() const override { return int64_t(tokens_.size()); }

 private:
  std::vector<std::string> tokens_;
  std::map<std::string, int32_t, std::less<>> added_;
};

using Json = nlohmann::ordered_json;

// The input as a source of choices.
class Choices {
 public:
  explicit Choices(std::string_view bytes) : bytes_(bytes) {}
  size_t Below(size_t n) {
    if (bytes_.empty()) return 0;
    const size_t chosen = static_cast<uint8_t>(bytes_[0]) % n;
    bytes_.remove_prefix(1);
    return chosen;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

Json RandomSchema(Choices* choices, int depth) {
  static const char* const kNames[] = {"a", "b", "ab", "\"", "x\\y", "é"};
  static const char* const kPatterns[] = {"^a+$", "b", "^(a|bc){2,3}$", "[^a]$", "\"", "^.{2}$"};
  static const char* const kFormats[] = {"date", "uuid", "email", "time"};
  static const char* const kTypes[] = {"null",   "boolean", "integer", "number",
                                       "string", "array",   "object"};
  Json schema = Json::object();
  const auto child = [&] { return RandomSchema(choices, depth - 1); };
  for (size_t n = choices->Below(5); n > 0 && !choices->empty(); --n) {
    const auto number = [&] { return int64_t(choices->Below(200)) - 50; };
    switch (choices->Below(depth > 0 ? 24 : 14)) {
      case 0: schema["type"] = kTypes[choices->Below(7)]; break;
      case 1: schema["type"] = {kTypes[choices->Below(7)], kTypes[choices->Below(7)]}; break;
      case 2: schema["minLength"] = choices->Below(6); break;
      case 3: schema["maxLength"] = choices->Below(9); break;
      case 4: schema["pattern"] = kPatterns[choices->Below(6)]; break;
      case 5: schema["format"] = kFormats[choices->Below(4)]; break;
      case 6: schema["minimum"] = number(); break;
      case 7: schema["exclusiveMaximum"] = double(number()) / 8; break;
      case 8: schema["multipleOf"] = 1 + choices->Below(9); break;
      case 9: schema["enum"] = {number(), kNames[choices->Below(6)], nullptr}; break;
      case 10: schema["minItems"] = choices->Below(4); break;
      case 11: schema["maxItems"] = choices->Below(5); break;
      case 12: schema["minProperties"] = choices->Below(3); break;
      case 13: schema["maxProperties"] = choices->Below(4); break;
      case 14: schema["items"] = child(); break;
      case 15: schema["prefixItems"] = {child(), child()}; break;
      case 16:
      case 17: schema["properties"][kNames[choices->Below(6)]] = child(); break;
      case 18: schema["required"] = {kNames[choices->Below(6)]}; break;
      case 19:
        schema["additionalProperties"] = choices->Below(3) == 0 ? Json(false) : child();
        break;
      case 20: schema["anyOf"] = {child(), child()}; break;
      case 21: schema["oneOf"] = {child(), child()}; break;
      case 22: schema["allOf"] = {child(), child()}; break;
      default: schema["patternProperties"][kPatterns[choices->Below(6)]] = child();
    }
  }
  if (choices->Below(16) == 1) schema["$ref"] = "#";
  return schema;
}

// Draws tokens, then goes the shortest way to the end. Returns the text if it got there.
std::string Walk(const std::shared_ptr<const Grammar>& grammar,
                 const std::shared_ptr<const TokenTrie>& trie, Choices* choices, bool* ends) {
  GrammarMatcher matcher(grammar, trie);
  std::vector<uint32_t> mask(trie->num_words());
  std::string text;
  for (int step = 0; step < 400 && !matcher.can_end() && !matcher.is_stuck(); ++step) {
    matcher.Mask(mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < trie->vocab_size(); ++id) {
      if ((mask[size_t(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    CHECK(!allowed.empty());
    int32_t id = allowed[choices->Below(allowed.size())];
    if (step >= 40 || choices->empty()) {
      const uint32_t left = matcher.min_bytes_to_end();
      for (const int32_t other : allowed) {
        GrammarMatcher copy = matcher;
        CHECK(copy.Accept(other));
        id = other;
        if (copy.min_bytes_to_end() < left) break;
      }
    }
    CHECK(matcher.Accept(id));
    text += trie->bytes(id);
  }
  *ends = matcher.can_end();
  return text;
}

void FuzzOne(std::string_view input) {
  static const SmallTokenizer tokenizer;
  static const std::shared_ptr<const TokenTrie> trie = TokenTrie::Of(tokenizer);
  if (input.empty()) return;
  const int kind = input[0] & 3;
  input.remove_prefix(1);
  const std::string_view choices_bytes = input.substr(input.size() / 2);
  Choices choices(kind == 1 ? choices_bytes : input);
  std::shared_ptr<const Grammar> grammar;
  try {
    if (kind == 0) grammar = GrammarOfJsonSchema(input);
    if (kind == 1) grammar = GrammarOfGbnf(input, tokenizer);
    if (kind == 2) grammar = GrammarOfJsonSchema(RandomSchema(&choices, 3).dump());
    if (kind == 3) {
      Json parameters = RandomSchema(&choices, 2);
      parameters["type"] = "object";
      const std::vector<ToolSpec> tools = {{"f", parameters.dump()}, {"ff", ""}};
      grammar = GrammarOfToolCalls(tools, ToolCallRule(choices.Below(2)), true, tokenizer);
    }
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadRequest);
    return;
  }
  bool ends = false;
  const std::string text = Walk(grammar, trie, &choices, &ends);
  // With so few places at a time nothing of a schema's grammar is ever left out.
  if ((kind == 0 || kind == 2) && ends) CHECK(Json::accept(text));
}

}  // namespace
}  // namespace hillstar

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hillstar::FuzzOne(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
