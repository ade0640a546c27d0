#include "grammar/automaton.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

uint64_t HashOf(const std::vector<uint32_t>& numbers) {
  uint64_t hash = 0x9E3779B97F4A7C15u;
  for (const uint32_t number : numbers) {
    hash = (hash ^ number) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 29;
  }
  return hash;
}

struct NumbersHash {
  size_t operator()(const std::vector<uint32_t>& numbers) const { return HashOf(numbers); }
};

}  // namespace

std::vector<SymbolRange> Joined(std::vector<SymbolRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](SymbolRange a, SymbolRange b) { return a.first < b.first; });
  std::vector<SymbolRange> joined;
  for (const SymbolRange range : ranges) {
    if (!joined.empty() && range.first <= uint64_t{joined.back().last} + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

std::vector<SymbolRange> Without(std::span<const SymbolRange> universe,
                                 std::span<const SymbolRange> ranges) {
  std::vector<SymbolRange> left;
  for (const SymbolRange all : universe) {
    uint64_t next = all.first;
    for (const SymbolRange range : ranges) {
      if (range.last < next || range.first > all.last) continue;
      if (range.first > next) left.push_back({uint32_t(next), range.first - 1});
      next = uint64_t{range.last} + 1;
    }
    if (next <= all.last) left.push_back({uint32_t(next), all.last});
  }
  return left;
}

bool Contains(std::span<const SymbolRange> ranges, SymbolRange part) {
  return std::ranges::any_of(ranges, [&](SymbolRange range) {
    return range.first <= part.first && part.last <= range.last;
  });
}

uint32_t Nfa::AddNode() {
  budget_->Spend(1);
  nodes_.emplace_back();
  return uint32_t(nodes_.size() - 1);
}

void Nfa::AddEdge(uint32_t from, SymbolRange symbols, uint32_t to) {
  budget_->Spend(1);
  nodes_[from].edges.push_back({symbols, to});
}

void Nfa::AddEmptyEdge(uint32_t from, uint32_t to) {
  budget_->Spend(1);
  nodes_[from].empty_edges.push_back(to);
}

// The subset construction: a node of the result stands for a set of nodes.
class SubsetBuilder {
 public:
  SubsetBuilder(const Nfa& nfa, WorkBudget* budget)
      : nfa_(nfa), budget_(budget), seen_(nfa.nodes_.size(), 0) {}

  Dfa Build() {
    IdOf({Nfa::kStart});
    for (size_t i = 0; i < sets_.size(); ++i) AddEdges(uint32_t(i));
    return std::move(dfa_);
  }

 private:
  // The number of the set that `kernel` and what its empty edges lead to make. Only nodes that
  // matter stay in it: those with edges, and the end.
  uint32_t IdOf(const std::vector<uint32_t>& kernel) {
    std::vector<uint32_t> set;
    ++round_;
    work_ = kernel;
    while (!work_.empty()) {
      const uint32_t at = work_.back();
      work_.pop_back();
      if (seen_[at] == round_) continue;
      seen_[at] = round_;
      budget_->Spend(1);
      const Nfa::Node& node = nfa_.nodes_[at];
      if (!node.edges.empty() || at == Nfa::kEnd) set.push_back(at);
      work_.insert(work_.end(), node.empty_edges.begin(), node.empty_edges.end());
    }
    std::sort(set.begin(), set.end());
    const auto [found, is_new] = ids_.emplace(set, uint32_t(sets_.size()));
    if (is_new) {
      dfa_.nodes.emplace_back();
      dfa_.nodes.back().accepts = std::ranges::binary_search(set, Nfa::kEnd);
      sets_.push_back(std::move(set));
    }
    return found->second;
  }

  void AddEdges(uint32_t id) {
    edges_.clear();
    for (const uint32_t node : sets_[id]) {
      const auto& edges = nfa_.nodes_[node].edges;
      edges_.insert(edges_.end(), edges.begin(), edges.end());
    }
    std::sort(edges_.begin(), edges_.end(), [](const Nfa::Edge& a, const Nfa::Edge& b) {
      return a.symbols.first < b.symbols.first;
    });
    // Stretches of edges that overlap are cut at their bounds.
    for (size_t begin = 0, end; begin < edges_.size(); begin = end) {
      uint32_t last = edges_[begin].symbols.last;
      for (end = begin + 1; end < edges_.size() && edges_[end].symbols.first <= last; ++end) {
        last = std::max(last, edges_[end].symbols.last);
      }
      if (end == begin + 1) {
        Add(id, edges_[begin].symbols, {edges_[begin].to});
      } else {
        AddCut(id, std::vector<Nfa::Edge>(edges_.begin() + ptrdiff_t(begin),
                                          edges_.begin() + ptrdiff_t(end)));
      }
    }
  }

  void AddCut(uint32_t id, const std::vector<Nfa::Edge>& edges) {
    std::vector<uint64_t> cuts;
    for (const Nfa::Edge& edge : edges) {
      cuts.push_back(edge.symbols.first);
      cuts.push_back(uint64_t{edge.symbols.last} + 1);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::vector<uint32_t> kernel;
      budget_->Spend(int64_t(edges.size()));
      for (const Nfa::Edge& edge : edges) {
        if (edge.symbols.first <= cuts[i] && cuts[i] <= edge.symbols.last) {
          kernel.push_back(edge.to);
        }
      }
      if (!kernel.empty()) Add(id, {uint32_t(cuts[i]), uint32_t(cuts[i + 1] - 1)}, kernel);
    }
  }

  void Add(uint32_t from, SymbolRange symbols, const std::vector<uint32_t>& kernel) {
    budget_->Spend(1);
    const uint32_t to = IdOf(kernel);
    auto& edges = dfa_.nodes[from].edges;
    if (!edges.empty() && edges.back().to == to && edges.back().symbols.last + 1 == symbols.first) {
      edges.back().symbols.last = symbols.last;
    } else {
      edges.push_back({symbols, to});
    }
  }

  const Nfa& nfa_;
  WorkBudget* budget_;
  Dfa dfa_;
  std::vector<std::vector<uint32_t>> sets_;  // by node of the result
  std::unordered_map<std::vector<uint32_t>, uint32_t, NumbersHash> ids_;
  std::vector<uint32_t> seen_, work_;
  uint32_t round_ = 0;
  std::vector<Nfa::Edge> edges_;
};

std::optional<uint32_t> Dfa::Next(uint32_t node, uint32_t symbol) const {
  const auto& edges = nodes[node].edges;
  const auto found = std::partition_point(edges.begin(), edges.end(),
                                          [&](const Edge& e) { return e.symbols.last < symbol; });
  if (found == edges.end() || found->symbols.first > symbol) return {};
  return found->to;
}

bool Dfa::IsEmpty() const {
  return std::ranges::none_of(nodes, [](const Node& node) { return node.accepts; });
}

Dfa Trimmed(const Dfa& dfa, WorkBudget* budget) {
  const size_t n = dfa.nodes.size();
  std::vector<std::vector<uint32_t>> sources(n);
  std::vector<uint32_t> work;
  std::vector<bool> is_useful(n);
  for (uint32_t i = 0; i < n; ++i) {
    for (const Dfa::Edge& edge : dfa.nodes[i].edges) sources[edge.to].push_back(i);
    budget->Spend(1 + int64_t(dfa.nodes[i].edges.size()));
    if (dfa.nodes[i].accepts) work.push_back(i);
  }
  while (!work.empty()) {
    const uint32_t at = work.back();
    work.pop_back();
    if (is_useful[at]) continue;
    is_useful[at] = true;
    work.insert(work.end(), sources[at].begin(), sources[at].end());
  }
  std::vector<uint32_t> new_ids(n);
  uint32_t num_kept = 1;  // the start stays in any case
  for (uint32_t i = 1; i < n; ++i) {
    if (is_useful[i]) new_ids[i] = num_kept++;
  }
  Dfa trimmed;
  trimmed.nodes.resize(num_kept);
  for (uint32_t i = 0; i < n; ++i) {
    if (i != 0 && !is_useful[i]) continue;
    Dfa::Node& node = trimmed.nodes[new_ids[i]];
    node.accepts = dfa.nodes[i].accepts;
    for (const Dfa::Edge& edge : dfa.nodes[i].edges) {
      if (is_useful[edge.to]) node.edges.push_back({edge.symbols, new_ids[edge.to]});
    }
  }
  return trimmed;
}

Dfa Determinise(const Nfa& nfa, WorkBudget* budget) {
  return Trimmed(SubsetBuilder(nfa, budget).Build(), budget);
}

Dfa Intersection(const Dfa& a, const Dfa& b, WorkBudget* budget) {
  Dfa dfa;
  std::unordered_map<uint64_t, uint32_t> ids;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  const auto id_of = [&](uint32_t x, uint32_t y) {
    const auto [found, is_new] = ids.emplace(uint64_t{x} << 32 | y, uint32_t(pairs.size()));
    if (is_new) {
      pairs.emplace_back(x, y);
      dfa.nodes.emplace_back();
      dfa.nodes.back().accepts = a.nodes[x].accepts && b.nodes[y].accepts;
    }
    return found->second;
  };
  id_of(0, 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& ours = a.nodes[pairs[i].first].edges;
    const auto& theirs = b.nodes[pairs[i].second].edges;
    budget->Spend(1 + int64_t(ours.size() + theirs.size()));
    for (size_t x = 0, y = 0; x < ours.size() && y < theirs.size();) {
      const SymbolRange both = {std::max(ours[x].symbols.first, theirs[y].symbols.first),
                                std::min(ours[x].symbols.last, theirs[y].symbols.last)};
      if (both.first <= both.last) {
        const uint32_t to = id_of(ours[x].to, theirs[y].to);
        dfa.nodes[i].edges.push_back({both, to});
      }
      if (ours[x].symbols.last < theirs[y].symbols.last) {
        ++x;
      } else {
        ++y;
      }
    }
  }
  return Trimmed(dfa, budget);
}

Dfa Union(const Dfa& a, const Dfa& b, WorkBudget* budget) {
  Nfa nfa(budget);
  for (const Dfa* dfa : {&a, &b}) {
    std::vector<uint32_t> nodes;
    for (size_t i = 0; i < dfa->nodes.size(); ++i) nodes.push_back(nfa.AddNode());
    nfa.AddEmptyEdge(Nfa::kStart, nodes[0]);
    for (size_t i = 0; i < dfa->nodes.size(); ++i) {
      if (dfa->nodes[i].accepts) nfa.AddEmptyEdge(nodes[i], Nfa::kEnd);
      for (const Dfa::Edge& edge : dfa->nodes[i].edges) {
        nfa.AddEdge(nodes[i], edge.symbols, nodes[edge.to]);
      }
    }
  }
  return Determinise(nfa, budget);
}

Dfa Complement(const Dfa& dfa, std::span<const SymbolRange> universe, WorkBudget* budget) {
  Dfa turned = dfa;
  const auto rest = uint32_t(dfa.nodes.size());  // where every other word goes
  turned.nodes.emplace_back();
  for (Dfa::Node& node : turned.nodes) {
    node.accepts = !node.accepts;
    budget->Spend(1 + int64_t(node.edges.size()));
    std::vector<SymbolRange> taken;
    for (const Dfa::Edge& edge : node.edges) taken.push_back(edge.symbols);
    for (const SymbolRange range : Without(universe, taken)) node.edges.push_back({range, rest});
    std::sort(node.edges.begin(), node.edges.end(), [](const Dfa::Edge& x, const Dfa::Edge& y) {
      return x.symbols.first < y.symbols.first;
    });
  }
  return Trimmed(turned, budget);
}

Dfa AllTexts() { return TextsOf(kCodePoints); }

Dfa TextsOf(std::span<const SymbolRange> universe) {
  Dfa dfa;
  dfa.nodes.resize(1);
  dfa.nodes[0].accepts = true;
  for (const SymbolRange range : universe) dfa.nodes[0].edges.push_back({range, 0});
  return dfa;
}

Dfa TextsOfLength(uint32_t min, std::optional<uint32_t> max, WorkBudget* budget) {
  Dfa dfa;
  const uint32_t last = max ? *max : min;
  budget->Spend(last);
  dfa.nodes.resize(size_t{last} + 1);
  for (uint32_t i = 0; i <= last; ++i) {
    dfa.nodes[i].accepts = i >= min;
    const uint32_t next = i < last ? i + 1 : last;
    if (i == last && max) break;
    for (const SymbolRange range : kCodePoints) dfa.nodes[i].edges.push_back({range, next});
  }
  return dfa;
}

Dfa TextsAmong(std::span<const std::string_view> texts, WorkBudget* budget) {
  Nfa nfa(budget);
  for (const std::string_view text : texts) {
    uint32_t at = Nfa::kStart;
    bool is_valid = true;
    for (size_t pos = 0; pos < text.size() && is_valid;) {
      const Utf8Step step = ScanUtf8(text, pos);
      is_valid = step.status == Utf8Status::kCharacter;
      const uint32_t next = nfa.AddNode();
      nfa.AddEdge(at, {step.code, step.code}, next);
      at = next;
      pos += step.length;
    }
    if (is_valid) nfa.AddEmptyEdge(at, Nfa::kEnd);
  }
  return Determinise(nfa, budget);
}

Dfa TextsWithout(std::string_view part, WorkBudget* budget) {
  Nfa nfa(budget);
  for (const SymbolRange range : kCodePoints) nfa.AddEdge(Nfa::kStart, range, Nfa::kStart);
  uint32_t at = Nfa::kStart;
  for (const char c : part) {
    const auto symbol = uint32_t(static_cast<unsigned char>(c));
    const uint32_t next = nfa.AddNode();
    nfa.AddEdge(at, {symbol, symbol}, next);
    at = next;
  }
  for (const SymbolRange range : kCodePoints) nfa.AddEdge(at, range, at);
  nfa.AddEmptyEdge(at, Nfa::kEnd);
  return Complement(Determinise(nfa, budget), kCodePoints, budget);
}

bool Accepts(const Dfa& texts, std::string_view utf8) {
  uint32_t node = 0;
  for (size_t pos = 0; pos < utf8.size();) {
    const Utf8Step step = ScanUtf8(utf8, pos);
    if (step.status != Utf8Status::kCharacter) return false;
    const std::optional<uint32_t> next = texts.Next(node, step.code);
    if (!next) return false;
    node = *next;
    pos += step.length;
  }
  return texts.nodes[node].accepts;
}

}  // namespace hillstar
