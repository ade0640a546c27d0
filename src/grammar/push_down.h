// A compiled grammar: a push-down automaton over bytes and tokens. Each rule is a deterministic
// automaton; what makes several places of the grammar possible at once is that a rule may be called
// where a byte may follow too, and that a rule may end where it may go on. Immutable once built.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "grammar/expression.h"
#include "grammar/work_budget.h"

namespace hillstar {

struct PushDown {
  struct ByteEdge {
    uint8_t first, last;
    uint32_t to;
  };
  struct TokenEdge {
    int32_t first, last;
    uint32_t to;
  };
  struct CallEdge {
    uint32_t start;  // of the rule called
    uint32_t to;     // where its end leads
  };
  struct Node {
    uint32_t byte_begin = 0, byte_end = 0;  // of byte_edges
    uint32_t token_begin = 0, token_end = 0;
    uint32_t call_begin = 0, call_end = 0;
    bool accepts = false;  // the rule may end here
    bool is_end = false;   // it ends here: nothing leads on
    // How many plain characters (TokenTrie says which) may follow one another from here at most;
    // kEndless where there is no bound; 0 where nothing is known. Where the run has a bound,
    // another plain character behind it is not in the grammar.
    uint32_t text_run = 0;
    uint32_t min_bytes = 0;  // of the shortest way to the rule's end; a token counts as one
  };
  static constexpr uint32_t kEndless = UINT32_MAX;

  std::vector<Node> nodes;
  std::vector<ByteEdge> byte_edges;  // of a node: sorted, disjoint
  std::vector<TokenEdge> token_edges;
  std::vector<CallEdge> call_edges;
  uint32_t start = 0;
  // Bytes that no edge tells apart are one class.
  std::array<uint8_t, 256> class_of_byte{};
  std::vector<uint8_t> byte_of_class;  // one of each

  // 0 if no edge has the byte. Node 0 is no node.
  uint32_t Next(uint32_t node, uint8_t byte) const;
};

// Errors: kBadRequest for a grammar that holds no sentence, that has a rule which begins with
// itself, or that is larger than `budget` allows.
std::shared_ptr<const PushDown> Compile(const GrammarSource& source, uint32_t root,
                                        WorkBudget* budget);

}  // namespace hillstar
