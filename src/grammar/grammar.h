// Grammars of answers. Not there yet: every function refuses.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tokenizer/tokenizer.h"

namespace hillstar {

class Grammar;

// Errors: kUnsupported.
std::shared_ptr<const Grammar> GrammarOfGbnf(std::string_view gbnf, const Tokenizer& tokenizer);
std::shared_ptr<const Grammar> GrammarOfJsonSchema(std::string_view schema_json);
std::shared_ptr<const Grammar> GrammarOfJsonObject();
struct ToolSpec {
  std::string name;
  std::string parameters_json;
};
enum class ToolCallRule { kAuto, kRequired };
std::shared_ptr<const Grammar> GrammarOfToolCalls(std::span<const ToolSpec> tools,
                                                  ToolCallRule rule, bool parallel,
                                                  const Tokenizer& tokenizer);

}  // namespace hillstar
