// Lets an answer follow a grammar from where its reasoning ends: behind </think> where the prompt
// ends in an open <think>, else from its first token on. The answer ends where the grammar's
// sentence is whole, and not within the reasoning. Belongs to one sequence and one thread.
#pragma once

#include <memory>
#include <vector>

#include "engine/token_constraint.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {

class GrammarConstraint : public TokenConstraint {
 public:
  // `end_ids` end an answer. `trie` is of the model's tokenizer, which outlives the object.
  GrammarConstraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                    const Tokenizer& tokenizer, std::vector<int32_t> end_ids, bool starts_thinking);

  void Restrict(std::span<uint32_t> allowed) override;
  void Accept(int32_t id) override;

 private:
  GrammarMatcher matcher_;
  std::vector<int32_t> end_ids_;
  int32_t think_close_;  // id of </think>, or -1
  bool is_thinking_;
};

}  // namespace hillstar
