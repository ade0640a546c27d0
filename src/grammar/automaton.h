// Finite automata over ranges of 32-bit symbols: code points while a text's language is worked out,
// bytes, tokens and rules where a grammar's rule is. Plain values; one thread at a time builds one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/work_budget.h"

namespace hillstar {

struct SymbolRange {
  uint32_t first, last;  // both included
  bool operator==(const SymbolRange&) const = default;
};

// Sorts, joins what touches.
std::vector<SymbolRange> Joined(std::vector<SymbolRange> ranges);
// What of `universe` (joined) is not in `ranges` (joined).
std::vector<SymbolRange> Without(std::span<const SymbolRange> universe,
                                 std::span<const SymbolRange> ranges);
bool Contains(std::span<const SymbolRange> ranges, SymbolRange part);

// Every code point but surrogates.
inline constexpr SymbolRange kCodePoints[] = {{0, 0xD7FF}, {0xE000, 0x10FFFF}};

// Several nodes may follow one symbol, and none (an empty edge). Node 0 is the start, node 1 the
// end.
class Nfa {
 public:
  static constexpr uint32_t kStart = 0, kEnd = 1;

  // `budget` outlives the automaton and pays for every node and edge.
  explicit Nfa(WorkBudget* budget) : budget_(budget) { nodes_.resize(2); }

  uint32_t AddNode();
  void AddEdge(uint32_t from, SymbolRange symbols, uint32_t to);
  void AddEmptyEdge(uint32_t from, uint32_t to);

 private:
  friend class SubsetBuilder;
  struct Edge {
    SymbolRange symbols;
    uint32_t to;
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<uint32_t> empty_edges;
  };
  WorkBudget* budget_;
  std::vector<Node> nodes_;
};

// At most one node follows a symbol. Node 0 is the start; edges of a node are sorted and disjoint.
// An automaton that accepts nothing has a start without edges.
struct Dfa {
  struct Edge {
    SymbolRange symbols;
    uint32_t to;
  };
  struct Node {
    std::vector<Edge> edges;
    bool accepts = false;
  };
  std::vector<Node> nodes;

  std::optional<uint32_t> Next(uint32_t node, uint32_t symbol) const;
  bool IsEmpty() const;  // accepts nothing; true only of a trimmed one for certain
};

// The same language; every node but the start leads to an accepting one.
Dfa Determinise(const Nfa& nfa, WorkBudget* budget);
Dfa Trimmed(const Dfa& dfa, WorkBudget* budget);
Dfa Intersection(const Dfa& a, const Dfa& b, WorkBudget* budget);
Dfa Union(const Dfa& a, const Dfa& b, WorkBudget* budget);
// Of the words over `universe` (joined).
Dfa Complement(const Dfa& dfa, std::span<const SymbolRange> universe, WorkBudget* budget);

// Languages over code points.
Dfa AllTexts();
Dfa TextsOf(std::span<const SymbolRange> universe);  // any number of these
// Texts of `min` to `max` code points.
Dfa TextsOfLength(uint32_t min, std::optional<uint32_t> max, WorkBudget* budget);
// Exactly these texts, which are UTF-8. (Invalid bytes make a text that no automaton accepts.)
Dfa TextsAmong(std::span<const std::string_view> texts, WorkBudget* budget);
// Texts that hold `part`, of ASCII, nowhere.
Dfa TextsWithout(std::string_view part, WorkBudget* budget);
bool Accepts(const Dfa& texts, std::string_view utf8);

}  // namespace hillstar
