#include "engine/grammar_constraint.h"

#include "core/check.h"

namespace hillstar {

GrammarConstraint::GrammarConstraint(std::shared_ptr<const Grammar> grammar,
                                     std::shared_ptr<const TokenTrie> trie,
                                     const Tokenizer& tokenizer, std::vector<int32_t> end_ids,
                                     bool starts_thinking)
    : matcher_(std::move(grammar), std::move(trie)),
      end_ids_(std::move(end_ids)),
      think_close_(tokenizer.AddedTokenId("</think>").value_or(-1)),
      is_thinking_(starts_thinking && think_close_ >= 0) {}

void GrammarConstraint::Restrict(std::span<uint32_t> allowed) {
  const bool may_end = !is_thinking_ && matcher_.can_end();
  if (!is_thinking_) matcher_.Mask(allowed);
  for (const int32_t id : end_ids_) {
    const size_t word = size_t(id) / 32;
    if (word >= allowed.size()) continue;
    const uint32_t bit = uint32_t{1} << (id % 32);
    allowed[word] = may_end ? allowed[word] | bit : allowed[word] & ~bit;
  }
}

void GrammarConstraint::Accept(int32_t id) {
  if (is_thinking_) {
    is_thinking_ = id != think_close_;
    return;
  }
  CHECK(matcher_.Accept(id));
}

}  // namespace hillstar
