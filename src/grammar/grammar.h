// Grammars of answers: what a JSON schema, a GBNF text or a set of tools allows an answer to be.
// A grammar works on bytes and is followed by a GrammarMatcher (grammar/matcher.h).
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace hillstar {

struct PushDown;
class MaskCache;
class TokenTrie;

// Immutable but for a cache; any threads may share one. Worth keeping for the next request that
// asks for the same: its masks are found once.
class Grammar {
 public:
  explicit Grammar(std::shared_ptr<const PushDown> push_down) : push_down_(std::move(push_down)) {}

  const std::shared_ptr<const PushDown>& push_down() const { return push_down_; }
  // What is known of the grammar with these tokens. Lives as long as somebody uses it, and for the
  // last tokenizer as long as the grammar.
  std::shared_ptr<MaskCache> MasksWith(const std::shared_ptr<const TokenTrie>& trie) const;

 private:
  std::shared_ptr<const PushDown> push_down_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const TokenTrie> trie_;
  mutable std::shared_ptr<MaskCache> masks_;
};

// llama.cpp's GBNF, with rule "root" as the whole answer. A token terminal is written <[ID]> or as
// the added token's text, e.g. <think>; a ! in front means any other token. docs/grammar.md says
// more. Errors: kBadRequest with the line of what is wrong.
std::shared_ptr<const Grammar> GrammarOfGbnf(std::string_view gbnf, const Tokenizer& tokenizer);

// JSON texts that the schema (draft 2020-12) describes, and no others.
// Errors: kBadRequest with the JSON pointer and the keyword of what is wrong or not supported.
std::shared_ptr<const Grammar> GrammarOfJsonSchema(std::string_view schema_json);

// Any JSON object.
std::shared_ptr<const Grammar> GrammarOfJsonObject();

struct ToolSpec {
  std::string name;
  std::string parameters_json;  // JSON schema of an object; "" for a tool without parameters
};

enum class ToolCallRule {
  kAuto,     // text, and then calls if the model wants to: what it calls it calls rightly
  kRequired  // one call or more, and nothing else
};

// Calls as models of the GLM family write them: <tool_call>NAME<arg_key>K</arg_key>
// <arg_value>V</arg_value>...</tool_call>, without blanks in between. `parallel`: more than one.
// Errors: as GrammarOfJsonSchema's, with the tool's name.
std::shared_ptr<const Grammar> GrammarOfToolCalls(std::span<const ToolSpec> tools,
                                                  ToolCallRule rule, bool parallel,
                                                  const Tokenizer& tokenizer);

}  // namespace hillstar
