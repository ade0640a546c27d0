#include "grammar/text_runs.h"

#include <algorithm>

namespace hillstar {
namespace {

// Plain ASCII characters among some (TokenTrie says which are plain).
int NumPlain(int first, int last) {
  int count = std::max(0, std::min(last, 0x7E) - std::max(first, 0x20) + 1);
  for (const int special : {'"', '\\', '<'}) count -= first <= special && special <= last;
  return count;
}

class RunFinder {
 public:
  RunFinder(uint32_t non_ascii, const std::vector<bool>& may_accept, PushDown* grammar,
            WorkBudget* budget)
      : non_ascii_(non_ascii),
        may_accept_(may_accept),
        grammar_(*grammar),
        budget_(budget),
        next_(grammar->nodes.size()) {}

  void Find() {
    for (uint32_t id = 1; id < grammar_.nodes.size(); ++id) {
      if (!FindNext(id)) next_[id].clear();
    }
    FindEndless();
    FindBounded();
  }

 private:
  // Where plain characters lead to. False if some do not lead on, or in more than one way.
  bool FindNext(uint32_t id) {
    const PushDown::Node& node = grammar_.nodes[id];
    if (node.accepts && !may_accept_[id]) return false;
    bool takes_non_ascii = false;
    for (uint32_t i = node.call_begin; i < node.call_end; ++i) {
      const PushDown::CallEdge& call = grammar_.call_edges[i];
      if (call.start == non_ascii_ && !takes_non_ascii) {
        takes_non_ascii = true;
        Add(id, call.to);
      } else if (!BeginsWithBackslash(call.start)) {
        return false;  // another rule might take plain characters too
      }
    }
    int num_plain = 0;
    for (uint32_t i = node.byte_begin; i < node.byte_end; ++i) {
      budget_->Spend(1);
      const PushDown::ByteEdge& edge = grammar_.byte_edges[i];
      if (edge.last >= 0x80) return false;  // another way for what is not ASCII
      const int found = NumPlain(edge.first, edge.last);
      num_plain += found;
      if (found > 0) Add(id, edge.to);
    }
    return takes_non_ascii && num_plain == NumPlain(0, 0x7F);
  }

  void Add(uint32_t id, uint32_t next) {
    if (std::ranges::find(next_[id], next) == next_[id].end()) next_[id].push_back(next);
  }

  // A rule of escapes: no plain character begins it.
  bool BeginsWithBackslash(uint32_t start) const {
    const PushDown::Node& node = grammar_.nodes[start];
    return !node.accepts && node.byte_end == node.byte_begin + 1 &&
           node.token_begin == node.token_end && node.call_begin == node.call_end &&
           grammar_.byte_edges[node.byte_begin].first == '\\' &&
           grammar_.byte_edges[node.byte_begin].last == '\\';
  }

  // Text goes on for ever where it leads only to nodes where it does: the largest set of such
  // nodes, which is what is left when those that lead out of it are taken away one by one.
  void FindEndless() {
    std::vector<std::vector<uint32_t>> sources(next_.size());
    std::vector<uint32_t> work;
    for (uint32_t id = 1; id < next_.size(); ++id) {
      for (const uint32_t next : next_[id]) sources[next].push_back(id);
      if (next_[id].empty()) work.push_back(id);
    }
    std::vector<bool> leads_out(next_.size());
    while (!work.empty()) {
      const uint32_t id = work.back();
      work.pop_back();
      if (leads_out[id]) continue;
      budget_->Spend(1 + int64_t(sources[id].size()));
      leads_out[id] = true;
      work.insert(work.end(), sources[id].begin(), sources[id].end());
    }
    for (uint32_t id = 1; id < next_.size(); ++id) {
      if (!leads_out[id]) grammar_.nodes[id].text_run = PushDown::kEndless;
    }
  }

  // Chains of nodes, from their ends on: a run is one longer than that of the node it leads to.
  void FindBounded() {
    std::vector<std::vector<uint32_t>> sources(next_.size());
    std::vector<uint32_t> work;
    for (uint32_t id = 1; id < next_.size(); ++id) {
      if (grammar_.nodes[id].text_run == PushDown::kEndless || next_[id].size() != 1) continue;
      const uint32_t next = next_[id][0];
      sources[next].push_back(id);
      if (!EndsRun(next)) continue;
      grammar_.nodes[id].text_run = 1;
      work.push_back(id);
    }
    while (!work.empty()) {
      const uint32_t id = work.back();
      work.pop_back();
      for (const uint32_t source : sources[id]) {
        budget_->Spend(1);
        grammar_.nodes[source].text_run = grammar_.nodes[id].text_run + 1;
        work.push_back(source);
      }
    }
  }

  // Whether no plain character may come here, in this rule or behind it.
  bool EndsRun(uint32_t id) const {
    const PushDown::Node& node = grammar_.nodes[id];
    if (node.accepts || node.call_begin != node.call_end) return false;
    for (uint32_t i = node.byte_begin; i < node.byte_end; ++i) {
      const PushDown::ByteEdge& edge = grammar_.byte_edges[i];
      if (edge.last >= 0x80 || NumPlain(edge.first, edge.last) > 0) return false;
    }
    return true;
  }

  const uint32_t non_ascii_;
  const std::vector<bool>& may_accept_;
  PushDown& grammar_;
  WorkBudget* budget_;
  std::vector<std::vector<uint32_t>> next_;  // by node; empty where text does not just go on
};

}  // namespace

void FindTextRuns(uint32_t non_ascii, const std::vector<bool>& may_accept, PushDown* grammar,
                  WorkBudget* budget) {
  if (non_ascii != 0) RunFinder(non_ascii, may_accept, grammar, budget).Find();
}

}  // namespace hillstar
