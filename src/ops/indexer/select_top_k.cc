#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "core/check.h"
#include "core/integers.h"
#include "core/thread_pool.h"
#include "ops/kernels.h"

namespace hillstar {
namespace {

// Scores that are looked at to guess a floor that the k largest lie above.
constexpr int64_t kSamples = 2048;
// Where more than one score in this many is wanted, a guess spares too little.
constexpr int64_t kLeastScoresPerChosen = 4;
// Scores that are worth handing to another thread: some microseconds.
constexpr int64_t kPartScores = int64_t{1} << 15;
constexpr int64_t kMaxParts = 64;

// Integers that order as the floats do, NaN included (beyond the infinities), -0 below +0.
int32_t OrderedBits(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
float FromOrderedBits(int32_t bits) {
  return std::bit_cast<float>(bits < 0 ? bits ^ 0x7fffffff : bits);
}

// Takes the k largest of `count` candidates in ascending order of index, candidate(i) being the
// index of the i-th. values: f32 [count], spoilt.
template <typename CandidateFn>
void TakeLargest(const TopKRow& row, int64_t count, const CandidateFn& candidate, float* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = row.scores[candidate(i)];
  std::nth_element(values, values + (row.k - 1), values + count, std::greater<float>());
  const float threshold = values[row.k - 1];
  int64_t ties_left = row.k;
  for (int64_t i = 0; i < row.k; ++i) ties_left -= values[i] > threshold;
  int64_t num_selected = 0;
  for (int64_t i = 0; num_selected < row.k; ++i) {
    const int32_t index = candidate(i);
    const float score = row.scores[index];
    const bool is_tie = score == threshold && ties_left > 0;
    ties_left -= is_tie;
    row.selected[num_selected] = index;
    num_selected += is_tie || score > threshold;
  }
}

void TakeFromAll(const TopKRow& row) {
  TakeLargest(
      row, row.n, [](int64_t i) { return int32_t(i); }, reinterpret_cast<float*>(row.scratch));
}

// The k selected are all `count` scores above the floor, at the indices in row.scratch, and the
// first scores equal to it. False if there are too few of these.
bool TakeWithTies(const TopKRow& row, int64_t count, float floor) {
  int64_t next = 0, num_selected = 0;  // of those above; in all
  for (int64_t i = 0; num_selected - next < row.k - count; ++i) {
    if (i == row.n) return false;
    if (row.scores[i] != floor) continue;
    while (next < count && row.scratch[next] < i) {
      row.selected[num_selected++] = row.scratch[next++];
    }
    row.selected[num_selected++] = int32_t(i);
  }
  std::copy_n(row.scratch + next, count - next, row.selected + num_selected);
  return true;
}

// A floor that somewhat more than k scores lie above, if the samples are like the rest.
float GuessFloor(const TopKRow& row) {
  int32_t samples[kSamples];
  const int64_t stride = row.n / kSamples;
  for (int64_t i = 0; i < kSamples; ++i) samples[i] = OrderedBits(row.scores[i * stride]);
  // As many samples as expected above the k-th largest, and four standard deviations more.
  const double expected = double(row.k) * kSamples / double(row.n);
  const int64_t rank = int64_t(expected + 4 * std::sqrt(expected) + 4);
  CHECK(rank < kSamples);
  std::nth_element(samples, samples + rank, samples + kSamples, std::greater<int32_t>());
  return FromOrderedBits(samples[rank]);
}

// Collects the indices of scores above `floor` at row.scratch and returns their number, or -1 if a
// score is not finite.
int64_t CollectAll(const CpuKernels& kernels, const TopKRow& row, float floor, ThreadPool* pool) {
  const int64_t at_once =
      pool ? std::max(kPartScores, RoundUp(CeilDiv(row.n, kMaxParts), int64_t{16})) : row.n;
  const int64_t num_parts = CeilDiv(row.n, at_once);
  int64_t counts[kMaxParts] = {};
  const auto collect = [&](int64_t part, int) {
    const int64_t first = part * at_once;
    counts[part] = kernels.collect_above(
        {row.scores, first, std::min(at_once, row.n - first), floor, row.scratch + first});
  };
  if (num_parts == 1) {
    collect(0, 0);
  } else {
    pool->Run(num_parts, collect);
  }
  int64_t count = counts[0];
  for (int64_t part = 1; part < num_parts && count >= 0; ++part) {
    if (counts[part] < 0) return -1;
    std::copy_n(row.scratch + part * at_once, counts[part], row.scratch + count);
    count += counts[part];
  }
  return count;
}

}  // namespace

bool SelectTopK(const CpuKernels& kernels, const TopKRow& row, ThreadPool* pool) {
  CHECK(row.k > 0 && row.k <= row.n);
  const bool guesses =
      row.n >= kLeastScoresPerChosen * row.k && row.n >= kLeastScoresPerChosen * kSamples;
  const float floor = guesses ? GuessFloor(row) : std::numeric_limits<float>::infinity();
  const int64_t count = CollectAll(kernels, row, floor, pool);
  if (count < 0) return false;
  // The values of the candidates lie behind them.
  if (count >= row.k && 2 * count <= row.n) {
    TakeLargest(
        row, count, [&](int64_t i) { return row.scratch[i]; },
        reinterpret_cast<float*>(row.scratch + count));
    return true;
  }
  if (guesses && count < row.k && TakeWithTies(row, count, floor)) return true;
  TakeFromAll(row);  // short rows, and those whose samples were not like the rest
  return true;
}

namespace reference {

int64_t CollectAbove(const CollectAboveSlice& s) {
  int64_t count = 0;
  for (int64_t i = s.first; i < s.first + s.n; ++i) {
    if (!std::isfinite(s.scores[i])) return -1;
    if (s.scores[i] > s.floor) s.above[count++] = int32_t(i);
  }
  return count;
}

}  // namespace reference
}  // namespace hillstar
