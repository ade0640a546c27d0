#include "tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "formats/json_scan.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

// GPT-2's words: what ByteLevel splits by when it does so itself (use_regex).
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr size_t kMaxPatterns = 16;
constexpr size_t kMaxFileBytes = size_t{512} << 20;  // GLM-5.2's has 20 MB

[[noreturn]] void Bad(const std::string& what) {
  throw Error(ErrorCode::kBadFile, "tokenizer.json is damaged: " + what + ".");
}

[[noreturn]] void Unsupported(const std::string& what) {
  throw Error(
      ErrorCode::kUnsupported,
      "tokenizer.json is not a tokenizer that this program serves (byte-level BPE): " + what + ".");
}

const Json& Required(const Json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end()) Bad(where + " has no " + Quoted(name));
  return *found;
}

// The member, or null where there is none.
const Json& Optional(const Json& object, const char* name) {
  static const Json null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

bool Flag(const Json& object, const char* name, bool fallback, const std::string& where) {
  const Json& value = Optional(object, name);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) Bad(Quoted(name) + " of " + where + " is no boolean");
  return value.get<bool>();
}

const std::string& Text(const Json& object, const char* name, const std::string& where) {
  const Json& value = Required(object, name, where);
  if (!value.is_string()) Bad(Quoted(name) + " of " + where + " is no string");
  return value.get_ref<const std::string&>();
}

int32_t TokenId(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned()) Bad("the id of " + where + " is no whole number from 0 on");
  const auto id = value.get<uint64_t>();
  if (id >= uint64_t{kMaxTokenId}) {
    Bad("the id of " + where + ", " + std::to_string(id) + ", is not below " +
        std::to_string(kMaxTokenId));
  }
  return static_cast<int32_t>(id);
}

void RequireFalse(const Json& object, const char* name, const std::string& where) {
  if (Flag(object, name, false, where)) Unsupported(where + " sets " + Quoted(name));
}

void RequireEmptyText(const Json& model, const char* name) {
  const Json& value = Optional(model, name);
  if (value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty())) return;
  Unsupported("the model sets " + Quoted(name));
}

void ParseVocab(const Json& model, TokenizerSpec* spec) {
  const Json& vocab = Required(model, "vocab", "the model");
  if (!vocab.is_object()) Bad("\"vocab\" of the model is no object");
  std::unordered_map<int32_t, const std::string*> seen;
  seen.reserve(vocab.size());
  spec->vocab.reserve(vocab.size());
  for (const auto& [entry, value] : vocab.items()) {
    const int32_t id = TokenId(value, "the vocabulary's entry \"" + entry + "\"");
    spec->vocab.emplace_back(entry, id);
    if (!seen.emplace(id, nullptr).second) {
      Bad("two entries of the vocabulary have id " + std::to_string(id) + ", one is \"" + entry +
          "\"");
    }
  }
}

// Both spellings: "a b" and ["a", "b"].
std::pair<std::string, std::string> ParseMerge(const Json& merge, size_t rank) {
  const std::string where = "merge " + std::to_string(rank);
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      Bad(where + " is not two entries with one space between: \"" + text + "\"");
    }
    return {text.substr(0, space), text.substr(space + 1)};
  }
  if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) {
    Bad(where + " is neither a string nor a pair of strings");
  }
  return {merge[0].get<std::string>(), merge[1].get<std::string>()};
}

void ParseModel(const Json& model, TokenizerSpec* spec) {
  if (!model.is_object()) Bad("\"model\" is no object");
  const Json& type = Optional(model, "type");
  if (!type.is_null() && type != "BPE") Unsupported("the model's type is " + type.dump());
  RequireEmptyText(model, "continuing_subword_prefix");
  RequireEmptyText(model, "end_of_word_suffix");
  const Json& dropout = Optional(model, "dropout");
  if (!dropout.is_null() && dropout != 0) Unsupported("the model sets \"dropout\"");
  spec->ignore_merges = Flag(model, "ignore_merges", false, "the model");
  ParseVocab(model, spec);
  const Json& merges = Required(model, "merges", "the model");
  if (!merges.is_array()) Bad("\"merges\" of the model is no array");
  spec->merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) spec->merges.push_back(ParseMerge(merges[i], i));
}

void ParseSplit(const Json& step, TokenizerSpec* spec) {
  const std::string where = "the pre-tokenizer's Split";
  const std::string& behavior = Text(step, "behavior", where);
  if (behavior != "Isolated") Unsupported(where + " has the behaviour \"" + behavior + "\"");
  RequireFalse(step, "invert", where);
  const Json& pattern = Required(step, "pattern", where);
  if (!pattern.is_object() || pattern.size() != 1) Bad("\"pattern\" of " + where + " is no object");
  if (pattern.contains("Regex")) {
    spec->patterns.push_back(SplitPattern::FromRegex(Text(pattern, "Regex", where)));
  } else {
    spec->patterns.push_back(SplitPattern::FromLiteral(Text(pattern, "String", where)));
  }
}

void ParseByteLevel(const Json& step, TokenizerSpec* spec) {
  const std::string where = "the pre-tokenizer's ByteLevel";
  RequireFalse(step, "add_prefix_space", where);
  if (Flag(step, "use_regex", true, where)) {
    spec->patterns.push_back(SplitPattern::FromRegex(kGpt2Pattern));
  }
}

// One step of the pre-tokenizer; a ByteLevel has to be there, and last.
void ParsePreTokenizerStep(const Json& step, bool is_last, TokenizerSpec* spec) {
  if (!step.is_object()) Bad("a step of \"pre_tokenizer\" is no object");
  const std::string& type = Text(step, "type", "the pre-tokenizer");
  if (type == "Split") {
    if (is_last) Unsupported("the pre-tokenizer does not end in ByteLevel");
    ParseSplit(step, spec);
  } else if (type == "ByteLevel") {
    if (!is_last) Unsupported("the pre-tokenizer has a step after ByteLevel");
    ParseByteLevel(step, spec);
  } else {
    Unsupported("the pre-tokenizer has the step \"" + type + "\"");
  }
}

void ParsePreTokenizer(const Json& pre_tokenizer, TokenizerSpec* spec) {
  if (pre_tokenizer.is_null()) Unsupported("it has no pre-tokenizer");
  if (!pre_tokenizer.is_object()) Bad("\"pre_tokenizer\" is no object");
  if (Text(pre_tokenizer, "type", "the pre-tokenizer") != "Sequence") {
    ParsePreTokenizerStep(pre_tokenizer, true, spec);
    return;
  }
  const Json& steps = Required(pre_tokenizer, "pretokenizers", "the pre-tokenizer");
  if (!steps.is_array() || steps.empty()) Bad("\"pretokenizers\" is no array of steps");
  if (steps.size() > kMaxPatterns) Unsupported("the pre-tokenizer has too many steps");
  for (size_t i = 0; i < steps.size(); ++i) {
    ParsePreTokenizerStep(steps[i], i + 1 == steps.size(), spec);
  }
}

// A Sequence of parts or one part; each must be of a type in `known`.
void RequirePartTypes(const Json& part, const char* member, const std::set<std::string>& known,
                      int depth = 0) {
  if (part.is_null()) return;
  const std::string where = Quoted(member);
  if (!part.is_object() || depth > 4) Bad(where + " is no object");
  const std::string& type = Text(part, "type", where);
  if (type == "Sequence") {
    for (const char* list : {"processors", "decoders"}) {
      for (const Json& inner : Optional(part, list)) {
        RequirePartTypes(inner, member, known, depth + 1);
      }
    }
  } else if (!known.contains(type)) {
    Unsupported(where + " is of type \"" + type + "\"");
  }
}

AddedTokenSpec ParseAddedToken(const Json& token, size_t index) {
  const std::string where = "added token " + std::to_string(index);
  if (!token.is_object()) Bad(where + " is no object");
  AddedTokenSpec spec;
  spec.content = Text(token, "content", where);
  if (spec.content.empty()) Bad(where + " is empty");
  const std::string name = where + " \"" + spec.content + "\"";
  spec.id = TokenId(Required(token, "id", name), name);
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) RequireFalse(token, flag, name);
  spec.special = Flag(token, "special", false, name);
  spec.normalized = Flag(token, "normalized", !spec.special, name);
  return spec;
}

void ParseAddedTokens(const Json& tokens, TokenizerSpec* spec) {
  if (tokens.is_null()) return;
  if (!tokens.is_array()) Bad("\"added_tokens\" is no array");
  std::unordered_map<int32_t, std::string> vocab_entry;
  std::unordered_map<std::string, int32_t> vocab_id;
  for (const auto& [entry, id] : spec->vocab) {
    vocab_entry.emplace(id, entry);
    vocab_id.emplace(entry, id);
  }
  std::unordered_set<std::string> contents;
  std::unordered_set<int32_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) {
    AddedTokenSpec token = ParseAddedToken(tokens[i], i);
    const std::string name = "the added token \"" + token.content + "\"";
    if (!contents.insert(token.content).second) Bad(name + " is there twice");
    if (!ids.insert(token.id).second) {
      Bad(name + " has id " + std::to_string(token.id) + ", as another added token has");
    }
    const auto entry = vocab_entry.find(token.id);
    if (entry != vocab_entry.end() && entry->second != token.content) {
      Bad(name + " has id " + std::to_string(token.id) + ", which the vocabulary gives to \"" +
          entry->second + "\"");
    }
    const auto id = vocab_id.find(token.content);
    if (id != vocab_id.end() && id->second != token.id) {
      Bad(name + " has id " + std::to_string(token.id) + ", but the vocabulary says " +
          std::to_string(id->second));
    }
    spec->added_tokens.push_back(std::move(token));
  }
}

}  // namespace

TokenizerSpec ParseTokenizerJson(std::string_view text) {
  if (text.empty()) {
    throw Error(ErrorCode::kNotFound, "The model has no tokenizer.json, or it is empty.");
  }
  const Json root = ParseJson(text, "tokenizer.json", kMaxFileBytes);
  if (!root.is_object()) Bad("it is no object");
  if (!Optional(root, "normalizer").is_null()) {
    Unsupported("it has a normalizer: " + root["normalizer"].dump().substr(0, 80));
  }
  TokenizerSpec spec;
  ParseModel(Required(root, "model", "it"), &spec);
  ParseAddedTokens(Optional(root, "added_tokens"), &spec);
  ParsePreTokenizer(Optional(root, "pre_tokenizer"), &spec);
  RequirePartTypes(Optional(root, "decoder"), "decoder", {"ByteLevel"});
  // A post-processor adds tokens around a whole input, which a chat prompt brings by itself.
  RequirePartTypes(Optional(root, "post_processor"), "post_processor",
                   {"ByteLevel", "TemplateProcessing"});
  return spec;
}

}  // namespace hillstar
