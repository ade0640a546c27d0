#include "grammar/rule_automata.h"

#include <algorithm>
#include <unordered_map>

#include "core/check.h"

namespace hillstar {
namespace {

using Kind = Expression::Kind;

// Rules of more nodes are called. Copying saves a frame on the stack and makes one automaton of
// what would be two; of larger rules it would make the automata large.
constexpr int64_t kMaxCopiedNodes = 24;
// Behind this many repeats even a small rule is called.
constexpr uint32_t kMaxCopies = 8;

uint32_t RuleOf(SymbolRange symbols) { return symbols.first - kRuleSymbols; }
bool IsCall(const Expression& expression) {
  return expression.kind == Kind::kSymbols && expression.symbols.size() == 1 &&
         expression.symbols[0].first >= kRuleSymbols;
}

class RuleBuilder {
 public:
  RuleBuilder(const GrammarSource& source, WorkBudget* budget)
      : rules_(source.rules()), budget_(budget), sizes_(rules_.size(), kUnknown) {}

  std::vector<Dfa> Build(uint32_t root) {
    std::vector<Dfa> automata(rules_.size());
    std::vector<uint32_t> work = {root};
    std::vector<bool> is_needed(rules_.size());
    is_needed[root] = true;
    while (!work.empty()) {
      const uint32_t rule = work.back();
      work.pop_back();
      automata[rule] = AutomatonOfRule(*rules_[rule].expression);
      for (const Dfa::Node& node : automata[rule].nodes) {
        for (const Dfa::Edge& edge : node.edges) {
          // Calls that lead to one node make a range.
          for (uint32_t symbol = edge.symbols.first;
               symbol >= kRuleSymbols && symbol <= edge.symbols.last; ++symbol) {
            const uint32_t called = symbol - kRuleSymbols;
            budget_->Spend(1);
            if (is_needed[called]) continue;
            is_needed[called] = true;
            work.push_back(called);
          }
        }
      }
    }
    return automata;
  }

 private:
  static constexpr int64_t kUnknown = -1, kOpen = -2, kLarge = INT64_MAX / 2;

  // About how many nodes a rule takes with the rules that it copies; kLarge if it cannot be copied.
  int64_t SizeOf(uint32_t rule) {
    if (sizes_[rule] == kOpen) return kLarge;  // it calls itself
    if (sizes_[rule] != kUnknown) return sizes_[rule];
    sizes_[rule] = kOpen;
    int64_t size = kLarge;
    // Deep chains of rules are left alone, for the sake of the machine's stack.
    if (!rules_[rule].stays_apart && depth_ < 200) {
      ++depth_;
      size = SizeOf(*rules_[rule].expression);
      --depth_;
    }
    return sizes_[rule] = size > kMaxCopiedNodes ? kLarge : size;
  }

  int64_t SizeOf(const Expression& expression) {
    constexpr int64_t kTooLarge = kMaxCopiedNodes + 1;
    int64_t size = 1;
    switch (expression.kind) {
      case Kind::kSymbols:
        if (!IsCall(expression)) return 1;
        // A call is one edge, but a rule that may be a part of itself is never copied: it would
        // have no end. Rules that stay apart cut every such circle.
        if (rules_[RuleOf(expression.symbols[0])].stays_apart) return 1;
        return std::min(SizeOf(RuleOf(expression.symbols[0])), kTooLarge);
      case Kind::kAutomaton:
        return std::min(int64_t(expression.automaton->nodes.size()), kTooLarge);
      case Kind::kRepeat:
        size = std::min(int64_t(expression.max.value_or(expression.min + 1)), kTooLarge);
        return std::min(size * SizeOf(*expression.parts[0]), kTooLarge);
      case Kind::kSequence:
      case Kind::kAlternative:
        for (const ExpressionPtr& part : expression.parts) {
          if (size < kTooLarge) size += SizeOf(*part);
        }
        return std::min(size, kTooLarge);
    }
    return size;
  }

  Dfa AutomatonOfRule(const Expression& expression) {
    if (expression.kind == Kind::kAutomaton) return Trimmed(*expression.automaton, budget_);
    Nfa nfa(budget_);
    Emit(expression, Nfa::kStart, Nfa::kEnd, true, &nfa);
    return Determinise(nfa, budget_);
  }

  // Adds the expression's words between two nodes.
  void Emit(const Expression& expression, uint32_t from, uint32_t to, bool may_copy, Nfa* nfa) {
    budget_->Spend(1);
    switch (expression.kind) {
      case Kind::kSymbols:
        if (may_copy && IsCall(expression) && SizeOf(RuleOf(expression.symbols[0])) < kLarge) {
          Emit(*rules_[RuleOf(expression.symbols[0])].expression, from, to, true, nfa);
          return;
        }
        for (const SymbolRange range : expression.symbols) nfa->AddEdge(from, range, to);
        return;
      case Kind::kAlternative:
        for (const ExpressionPtr& part : expression.parts) Emit(*part, from, to, may_copy, nfa);
        return;
      case Kind::kSequence: return EmitSequence(expression, from, to, may_copy, nfa);
      case Kind::kRepeat: return EmitRepeat(expression, from, to, may_copy, nfa);
      case Kind::kAutomaton: return EmitAutomaton(*expression.automaton, from, to, nfa);
    }
  }

  void EmitSequence(const Expression& expression, uint32_t from, uint32_t to, bool may_copy,
                    Nfa* nfa) {
    if (expression.parts.empty()) nfa->AddEmptyEdge(from, to);
    for (size_t i = 0; i < expression.parts.size(); ++i) {
      const uint32_t next = i + 1 == expression.parts.size() ? to : nfa->AddNode();
      Emit(*expression.parts[i], from, next, may_copy, nfa);
      from = next;
    }
  }

  void EmitRepeat(const Expression& expression, uint32_t from, uint32_t to, bool may_copy,
                  Nfa* nfa) {
    const uint32_t num_copies = expression.max.value_or(expression.min);
    may_copy = may_copy && num_copies <= kMaxCopies;
    for (uint32_t i = 0; i < num_copies; ++i) {
      if (i >= expression.min) nfa->AddEmptyEdge(from, to);
      const uint32_t next = nfa->AddNode();
      Emit(*expression.parts[0], from, next, may_copy, nfa);
      from = next;
    }
    if (!expression.max) {
      const uint32_t loop = nfa->AddNode();
      nfa->AddEmptyEdge(from, loop);
      Emit(*expression.parts[0], loop, loop, may_copy, nfa);
      from = loop;
    }
    nfa->AddEmptyEdge(from, to);
  }

  void EmitAutomaton(const Dfa& dfa, uint32_t from, uint32_t to, Nfa* nfa) {
    std::vector<uint32_t> nodes;
    for (size_t i = 0; i < dfa.nodes.size(); ++i) nodes.push_back(nfa->AddNode());
    nfa->AddEmptyEdge(from, nodes[0]);
    for (size_t i = 0; i < dfa.nodes.size(); ++i) {
      if (dfa.nodes[i].accepts) nfa->AddEmptyEdge(nodes[i], to);
      for (const Dfa::Edge& edge : dfa.nodes[i].edges) {
        nfa->AddEdge(nodes[i], edge.symbols, nodes[edge.to]);
      }
    }
  }

  const std::vector<GrammarRule>& rules_;
  WorkBudget* budget_;
  std::vector<int64_t> sizes_;
  int depth_ = 0;
};

}  // namespace

std::vector<Dfa> RuleAutomata(const GrammarSource& source, uint32_t root, WorkBudget* budget) {
  return RuleBuilder(source, budget).Build(root);
}

}  // namespace hillstar
