// The largest of rows of scores on a GPU: what indexer_cuda.cu asks of select_cuda.cu.
#pragma once

#include <cstdint>

#include "core/integers.h"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {

// Scores of some tokens, in the scratch; rows are written in units of 32 keys.
struct ScoreRows {
  float* scores = nullptr;
  int64_t pitch = 0;  // floats

  static constexpr int64_t Pitch(int64_t max_positions) { return RoundUp(max_positions, 32); }
  constexpr float* of(int64_t row) const { return scores + row * pitch; }
};
// Of scores at once, but at least one row: more tokens go in rounds.
inline constexpr int64_t kMaxScoreBytes = int64_t{256} << 20;

// Where rows are few and may be long, several blocks share a row: the scores are counted as they
// are made by their first 11 bits, then those that may be the last of the largest by the next 11;
// slices of the row give up what is above those 22 bits, and what has them.
inline constexpr int64_t kFewRows = 16;
inline constexpr int64_t kLongRow = 16384;
inline constexpr int kSliceKeys = 4096;
// Counts of a row, all 0 between selections: of the first bits, of scores that are not finite, of
// slices that are done; where the pivot's first bits are found, these and how many are above; then
// counts of the next bits.
inline constexpr int kNotFiniteAt = 2048, kTicketAt = 2049, kPivotAt = 2050, kNextBitsAt = 2052;
inline constexpr int64_t kRowBins = 4100;
// What a slice gives up: scores above the pivot's 22 bits, those that have them, and the least and
// largest of the latter's last 10 bits.
struct SliceCounts {
  int32_t above, ties;
  uint32_t least, largest;
};
struct SharedRows {
  int32_t* bins = nullptr;        // [rows, kRowBins]
  SliceCounts* slices = nullptr;  // [rows, slices of a row]
  // [rows, pitch], those of a slice where it lies, each kind in ascending order. First those above:
  // index, and how many of the slice's ties are before it; then ties: index, and their last 10 bits
  // below how many of those above are before it.
  uint2* candidates = nullptr;
  int64_t num_slices = 0;  // of a row

  static constexpr int64_t BytesOfRow(int64_t pitch) {
    return pitch * int64_t(sizeof(uint2)) +
           CeilDiv(pitch, kSliceKeys) * int64_t(sizeof(SliceCounts));
  }
  // In BytesOfRow(pitch) * num_rows bytes, aligned to 16.
  static SharedRows In(uint8_t* memory, int64_t pitch, int64_t num_rows, int32_t* bins) {
    SharedRows s;
    s.bins = bins;
    s.num_slices = CeilDiv(pitch, kSliceKeys);
    s.slices = reinterpret_cast<SliceCounts*>(memory);
    memory += num_rows * s.num_slices * int64_t(sizeof(SliceCounts));
    s.candidates = reinterpret_cast<uint2*>(memory);
    return s;
  }
};

// counts[t] = 0 of all live tokens.
void ClearCounts(const KernelContext& context, const SelectTask& task);
// Lists and counts of tokens [first, first + count), row i being of token first + i: the max_keys
// largest by (value descending, index ascending), in ascending order of index. A row with a value
// that is not finite is noted as bad and gets 0, 1, 2 ... bins: [rows, kRowBins] where the first
// bits of their scores are counted, 0 afterwards; or null.
void SelectTopKeys(const KernelContext& context, const SelectTask& task, const ScoreRows& rows,
                   int64_t first, int64_t count, int32_t* bins);
// Likewise for rows of all tokens whose scores' first bits are counted. Bins are 0 afterwards.
void SelectFromSharedRows(const KernelContext& context, const SelectTask& task,
                          const ScoreRows& rows, const SharedRows& shared);

}  // namespace hillstar::cuda
