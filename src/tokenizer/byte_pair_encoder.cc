#include "tokenizer/byte_pair_encoder.h"

#include <bit>
#include <cstddef>
#include <queue>
#include <tuple>
#include <utility>

#include "core/check.h"

namespace hillstar {
namespace {

constexpr uint64_t kNoKey = UINT64_MAX;
// Up to here a scan over all pairs per merge beats a queue.
constexpr size_t kShortBytes = 32;

uint64_t KeyOf(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// A symbol of a long word, in a doubly linked list over positions.
struct Symbol {
  int32_t id;
  int32_t previous, next;  // -1 at the ends
  bool merged_away;
};

struct Candidate {
  uint32_t rank;
  int32_t pos;
  int32_t left, right, merged;
};

struct LaterFirst {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tie(a.rank, a.pos) > std::tie(b.rank, b.pos);
  }
};

using CandidateQueue = std::priority_queue<Candidate, std::vector<Candidate>, LaterFirst>;

void PushCandidate(const MergeTable& merges, const std::vector<Symbol>& symbols, int32_t pos,
                   CandidateQueue* queue) {
  if (pos < 0) return;
  const Symbol& symbol = symbols[static_cast<size_t>(pos)];
  if (symbol.next < 0) return;
  const int32_t right = symbols[static_cast<size_t>(symbol.next)].id;
  const MergeTable::Merge merge = merges.Find(symbol.id, right);
  if (merge.rank != MergeTable::kNoRank) {
    queue->push({merge.rank, pos, symbol.id, right, merge.id});
  }
}

}  // namespace

MergeTable::MergeTable(size_t num_merges) {
  const size_t num_slots = std::bit_ceil(2 * num_merges + 2);
  shift_ = 64 - static_cast<uint32_t>(std::countr_zero(num_slots));
  slots_.assign(num_slots, {kNoKey, {}});
}

size_t MergeTable::SlotOf(uint64_t key) const {
  // Fibonacci hashing: 2^64 divided by the golden ratio spreads neighbouring keys.
  size_t slot = static_cast<size_t>(key * 0x9E3779B97F4A7C15ULL >> shift_);
  while (slots_[slot].key != kNoKey && slots_[slot].key != key) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

void MergeTable::Insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = KeyOf(left, right);
  slots_[SlotOf(key)] = {key, merge};
}

MergeTable::Merge MergeTable::Find(int32_t left, int32_t right) const {
  return slots_[SlotOf(KeyOf(left, right))].merge;
}

BytePairEncoder::BytePairEncoder(const std::array<int32_t, 256>& byte_ids, MergeTable merges,
                                 WordIds whole_words)
    : byte_ids_(byte_ids), merges_(std::move(merges)), whole_words_(std::move(whole_words)) {}

void BytePairEncoder::Encode(std::string_view word, std::vector<int32_t>* out) const {
  if (!whole_words_.empty()) {
    const auto found = whole_words_.find(word);
    if (found != whole_words_.end()) {
      out->push_back(found->second);
      return;
    }
  }
  if (word.size() <= kShortBytes) {
    EncodeShort(word, out);
  } else {
    EncodeLong(word, out);
  }
}

void BytePairEncoder::EncodeShort(std::string_view word, std::vector<int32_t>* out) const {
  std::array<int32_t, kShortBytes> ids;
  std::array<MergeTable::Merge, kShortBytes> merges;  // of ids[i] and ids[i + 1]
  size_t n = word.size();
  for (size_t i = 0; i < n; ++i) ids[i] = IdOfByte(word[i]);
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = merges_.Find(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeTable::kNoRank) break;
    ids[best] = merges[best].id;
    for (size_t i = best + 1; i + 1 < n; ++i) ids[i] = ids[i + 1];
    for (size_t i = best; i + 2 < n; ++i) merges[i] = merges[i + 1];
    --n;
    if (best + 1 < n) merges[best] = merges_.Find(ids[best], ids[best + 1]);
    if (best > 0) merges[best - 1] = merges_.Find(ids[best - 1], ids[best]);
  }
  out->insert(out->end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n));
}

void BytePairEncoder::EncodeLong(std::string_view word, std::vector<int32_t>* out) const {
  CHECK(word.size() < size_t{INT32_MAX});
  const auto n = static_cast<int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (int32_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    symbols[at] = {IdOfByte(word[at]), i - 1, i + 1 < n ? i + 1 : -1, false};
  }
  std::vector<Candidate> first;
  first.reserve(word.size());
  CandidateQueue queue(LaterFirst(), std::move(first));
  for (int32_t i = 0; i + 1 < n; ++i) PushCandidate(merges_, symbols, i, &queue);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(top.pos)];
    if (left.merged_away || left.id != top.left || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != top.right) continue;
    left.id = top.merged;
    left.next = right.next;
    right.merged_away = true;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.pos;
    PushCandidate(merges_, symbols, left.previous, &queue);
    PushCandidate(merges_, symbols, top.pos, &queue);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    out->push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace hillstar
