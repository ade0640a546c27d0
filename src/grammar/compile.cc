// From rules to a push-down automaton: the rules' automata are laid side by side, what cannot reach
// the end of a sentence is left out, and what could call itself for ever is refused.
#include <fmt/format.h>

#include <algorithm>
#include <queue>

#include "core/check.h"
#include "formats/json_scan.h"
#include "grammar/push_down.h"
#include "grammar/rule_automata.h"
#include "grammar/text_runs.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

constexpr uint32_t kNever = UINT32_MAX;  // no way to the end

// A node's edges before the layout. Targets are nodes over all rules.
struct LooseNode {
  struct Edge {
    SymbolRange symbols;  // bytes or tokens
    uint32_t to;
  };
  struct Call {
    uint32_t rule, to;
  };
  std::vector<Edge> edges;
  std::vector<Call> calls;
  bool accepts = false;
};

class Compiler {
 public:
  Compiler(const GrammarSource& source, uint32_t root, WorkBudget* budget)
      : source_(source), root_(root), budget_(budget) {}

  std::shared_ptr<const PushDown> Run() {
    Place(RuleAutomata(source_, root_, budget_));
    FindSources();
    FindShortest();
    if (shortest_[starts_[root_]] == kNever) {
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("Nothing satisfies the grammar: the rule {} has no finite sentence.",
                              Quoted(source_.rules()[root_].name)));
    }
    FindNullable();
    RefuseLeftRecursion();
    Lay();
    FindByteClasses();
    FindTextRuns(non_ascii_, may_accept_, &out_, budget_);
    return std::make_shared<const PushDown>(std::move(out_));
  }

 private:
  // Node 0 stands for none, so that 0 can mean so.
  void Place(const std::vector<Dfa>& automata) {
    nodes_.resize(1);
    starts_.assign(automata.size(), 0);
    for (size_t rule = 0; rule < automata.size(); ++rule) {
      const auto base = uint32_t(nodes_.size());
      if (automata[rule].nodes.empty()) continue;
      starts_[rule] = base;
      for (const Dfa::Node& from : automata[rule].nodes) {
        LooseNode& node = nodes_.emplace_back();
        node.accepts = from.accepts;
        rule_of_.resize(nodes_.size(), uint32_t(rule));
        for (const Dfa::Edge& edge : from.edges) AddEdge(edge, base, &node);
      }
    }
    budget_->Spend(int64_t(nodes_.size()));
  }

  void AddEdge(const Dfa::Edge& edge, uint32_t base, LooseNode* node) {
    const uint32_t to = base + edge.to;
    if (edge.symbols.first < kRuleSymbols) {
      node->edges.push_back({edge.symbols, to});
      return;
    }
    for (uint32_t symbol = edge.symbols.first;; ++symbol) {
      budget_->Spend(1);
      node->calls.push_back({symbol - kRuleSymbols, to});
      if (symbol == edge.symbols.last) break;
    }
  }

  void FindSources() {
    edge_sources_.resize(nodes_.size());
    call_sources_.resize(nodes_.size());
    callers_.resize(starts_.size());
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      budget_->Spend(int64_t(nodes_[i].edges.size() + nodes_[i].calls.size()));
      for (const auto& edge : nodes_[i].edges) {
        std::vector<uint32_t>& sources = edge_sources_[edge.to];
        if (sources.empty() || sources.back() != i) sources.push_back(i);
      }
      for (const auto& call : nodes_[i].calls) {
        call_sources_[call.to].push_back({i, call.rule});
        callers_[call.rule].push_back({i, call.to});
      }
    }
  }

  // Dijkstra's algorithm with calls (after Knuth): a node is done when nothing shorter can come.
  void FindShortest() {
    shortest_.assign(nodes_.size(), kNever);
    using Entry = std::pair<uint32_t, uint32_t>;  // bytes, node
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    std::vector<bool> is_done(nodes_.size());
    const auto offer = [&](uint32_t node, uint64_t bytes) {
      const auto capped = uint32_t(std::min<uint64_t>(bytes, kNever - 1));
      if (capped >= shortest_[node]) return;
      shortest_[node] = capped;
      queue.push({capped, node});
    };
    for (uint32_t i = 1; i < nodes_.size(); ++i) {
      if (nodes_[i].accepts) offer(i, 0);
    }
    while (!queue.empty()) {
      const uint32_t at = queue.top().second;
      queue.pop();
      if (is_done[at]) continue;
      is_done[at] = true;
      budget_->Spend(int64_t(edge_sources_[at].size() + call_sources_[at].size()));
      for (const uint32_t source : edge_sources_[at]) offer(source, uint64_t{shortest_[at]} + 1);
      for (const auto& [source, rule] : call_sources_[at]) {
        const uint32_t inside = shortest_[starts_[rule]];
        if (inside != kNever) offer(source, uint64_t{shortest_[at]} + inside);
      }
      if (at != starts_[rule_of_[at]]) continue;
      for (const auto& [caller, to] : callers_[rule_of_[at]]) {
        budget_->Spend(1);
        if (shortest_[to] != kNever) offer(caller, uint64_t{shortest_[to]} + shortest_[at]);
      }
    }
  }

  // Nodes from which the rule's end may be reached without a byte.
  void FindNullable() {
    is_nullable_.assign(nodes_.size(), false);
    for (uint32_t i = 1; i < nodes_.size(); ++i) is_nullable_[i] = shortest_[i] == 0;
  }

  // A rule that calls itself before a byte has come would be called for ever.
  void RefuseLeftRecursion() {
    enum : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> state(starts_.size(), kNew);
    std::vector<std::vector<uint32_t>> calls(starts_.size());
    std::vector<uint32_t> path;
    for (uint32_t first = 0; first < starts_.size(); ++first) {
      if (starts_[first] == 0 || state[first] != kNew) continue;
      path = {first};
      while (!path.empty()) {
        const uint32_t rule = path.back();
        if (state[rule] == kNew) {
          state[rule] = kOpen;
          calls[rule] = FirstCalls(rule);
        }
        if (calls[rule].empty()) {
          state[rule] = kDone;
          path.pop_back();
          continue;
        }
        const uint32_t next = calls[rule].back();
        calls[rule].pop_back();
        if (state[next] == kOpen) {
          throw Error(
              ErrorCode::kBadRequest,
              fmt::format("The rule {} of the grammar begins with itself. Write the "
                          "repetition as (...)* or put the rule behind what it begins with.",
                          Quoted(source_.rules()[next].name)));
        }
        if (state[next] == kNew) path.push_back(next);
      }
    }
  }

  // The rules that a rule may call before a byte has come.
  std::vector<uint32_t> FirstCalls(uint32_t rule) {
    std::vector<uint32_t> found, work = {starts_[rule]};
    std::vector<uint32_t> seen = work;
    while (!work.empty()) {
      const uint32_t at = work.back();
      work.pop_back();
      for (const auto& call : nodes_[at].calls) {
        budget_->Spend(1);
        if (!IsUseful(call)) continue;
        found.push_back(call.rule);
        const bool passes = is_nullable_[starts_[call.rule]];
        if (!passes || std::ranges::find(seen, call.to) != seen.end()) continue;
        budget_->Spend(int64_t(seen.size()));
        seen.push_back(call.to);
        work.push_back(call.to);
      }
    }
    return found;
  }

  bool IsUseful(const LooseNode::Call& call) const {
    return shortest_[call.to] != kNever && shortest_[starts_[call.rule]] != kNever;
  }

  void Lay() {
    std::vector<uint32_t> new_ids(nodes_.size(), 0);
    uint32_t num_nodes = 1;
    for (uint32_t i = 1; i < nodes_.size(); ++i) {
      if (shortest_[i] != kNever) new_ids[i] = num_nodes++;
    }
    out_.nodes.resize(num_nodes);
    may_accept_.push_back(false);
    out_.start = new_ids[starts_[root_]];
    for (uint32_t i = 1; i < nodes_.size(); ++i) {
      if (new_ids[i] == 0) continue;
      may_accept_.push_back(rule_of_[i] == root_ && callers_[root_].empty());
      PushDown::Node& node = out_.nodes[new_ids[i]];
      node.accepts = nodes_[i].accepts;
      node.min_bytes = shortest_[i];
      node.byte_begin = uint32_t(out_.byte_edges.size());
      node.token_begin = uint32_t(out_.token_edges.size());
      node.call_begin = uint32_t(out_.call_edges.size());
      for (const auto& edge : nodes_[i].edges) {
        if (const uint32_t to = new_ids[edge.to]; to != 0) LayEdge(edge.symbols, to);
      }
      for (const auto& call : nodes_[i].calls) {
        if (!IsUseful(call)) continue;
        out_.call_edges.push_back({new_ids[starts_[call.rule]], new_ids[call.to]});
      }
      node.byte_end = uint32_t(out_.byte_edges.size());
      node.token_end = uint32_t(out_.token_edges.size());
      node.call_end = uint32_t(out_.call_edges.size());
      node.is_end = node.accepts && node.byte_begin == node.byte_end &&
                    node.token_begin == node.token_end && node.call_begin == node.call_end;
    }
    non_ascii_ = new_ids[starts_[GrammarSource::kNonAsciiRule]];
  }

  void LayEdge(SymbolRange symbols, uint32_t to) {
    if (symbols.first >= kTokenSymbols) {
      out_.token_edges.push_back(
          {int32_t(symbols.first - kTokenSymbols), int32_t(symbols.last - kTokenSymbols), to});
    } else {
      CHECK(symbols.last < 256);
      out_.byte_edges.push_back({uint8_t(symbols.first), uint8_t(symbols.last), to});
    }
  }

  void FindByteClasses() {
    std::array<bool, 257> begins{};
    begins[0] = true;
    for (const PushDown::ByteEdge& edge : out_.byte_edges) {
      begins[edge.first] = true;
      begins[size_t{edge.last} + 1] = true;
    }
    for (size_t byte = 0; byte < 256; ++byte) {
      if (begins[byte]) out_.byte_of_class.push_back(uint8_t(byte));
      out_.class_of_byte[byte] = uint8_t(out_.byte_of_class.size() - 1);
    }
  }

  const GrammarSource& source_;
  const uint32_t root_;
  WorkBudget* budget_;
  std::vector<LooseNode> nodes_;
  std::vector<uint32_t> starts_;   // by rule; 0 for those that are not needed
  std::vector<uint32_t> rule_of_;  // by node
  // By node: those with an edge that leads to it, and with a call of a rule that does.
  std::vector<std::vector<uint32_t>> edge_sources_;
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> call_sources_;
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> callers_;  // by rule: node, and where to
  std::vector<uint32_t> shortest_;
  std::vector<bool> is_nullable_;
  std::vector<bool> may_accept_;  // by node of out_: as FindTextRuns asks
  uint32_t non_ascii_ = 0;
  PushDown out_;
};

}  // namespace

uint32_t PushDown::Next(uint32_t node, uint8_t byte) const {
  for (uint32_t i = nodes[node].byte_begin; i < nodes[node].byte_end; ++i) {
    if (byte_edges[i].last < byte) continue;
    return byte_edges[i].first <= byte ? byte_edges[i].to : 0;
  }
  return 0;
}

std::shared_ptr<const PushDown> Compile(const GrammarSource& source, uint32_t root,
                                        WorkBudget* budget) {
  return Compiler(source, root, budget).Run();
}

}  // namespace hillstar
