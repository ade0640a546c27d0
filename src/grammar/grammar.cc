#include "grammar/grammar.h"

#include "hillstar/error.h"

namespace hillstar {
namespace {

[[noreturn]] void Refuse() {
  throw Error(ErrorCode::kUnsupported, "answers cannot be made to follow a grammar yet");
}

}  // namespace

std::shared_ptr<const Grammar> GrammarOfGbnf(std::string_view, const Tokenizer&) { Refuse(); }
std::shared_ptr<const Grammar> GrammarOfJsonSchema(std::string_view) { Refuse(); }
std::shared_ptr<const Grammar> GrammarOfJsonObject() { Refuse(); }
std::shared_ptr<const Grammar> GrammarOfToolCalls(std::span<const ToolSpec>, ToolCallRule, bool,
                                                  const Tokenizer&) {
  Refuse();
}

}  // namespace hillstar
