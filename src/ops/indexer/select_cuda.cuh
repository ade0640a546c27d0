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
// are made by their first 11 bits, then by slices of the row those that may be the last of the
// largest by the next 11, then by the last 10; then slices write what is taken of them.
inline constexpr int64_t kFewRows = 16;
inline constexpr int64_t kLongRow = 16384;
inline constexpr int kSliceKeys = 4096;
inline constexpr int kLastBins = 1024;
// Counts of a row, all 0 between selections: of the first bits, of scores that are not finite, and
// of the next bits.
inline constexpr int kNotFiniteAt = 2048, kNextBitsAt = 2052;
inline constexpr int64_t kRowBins = 4100;
// What is known of a row's pivot, the last of the largest.
struct RowState {
  int32_t is_finite;  // all scores are
  uint32_t first_bits;
  int32_t wanted_of_first;  // of the scores that have these
  uint32_t pivot;           // first 22 bits
  int32_t wanted;           // of the scores that have them, the ties
};
struct alignas(16) SliceCounts {
  int32_t above, ties;  // of the pivot's first 22 bits
  int32_t are_equal;    // all ties, in the last bits too
};
struct SharedRows {
  int32_t* bins = nullptr;          // [rows, kRowBins]
  SliceCounts* slices = nullptr;    // [rows, slices of a row]
  uint16_t* last_of_tie = nullptr;  // [rows, slices, kSliceKeys]: last bits of the slice's ties
  int32_t* last_bits = nullptr;     // [rows, kLastBins]: counts of these
  RowState* states = nullptr;       // [rows]
  int64_t num_slices = 0;           // of a row

  static constexpr int64_t BytesOfRow(int64_t pitch) {
    return CeilDiv(pitch, kSliceKeys) *
               int64_t(sizeof(SliceCounts) + kSliceKeys * sizeof(uint16_t)) +
           kLastBins * int64_t(sizeof(int32_t)) + int64_t(sizeof(RowState));
  }
  // In BytesOfRow(pitch) * num_rows bytes, aligned to 16.
  static SharedRows In(uint8_t* memory, int64_t pitch, int64_t num_rows, int32_t* bins) {
    SharedRows s;
    s.bins = bins;
    s.num_slices = CeilDiv(pitch, kSliceKeys);
    const int64_t slices = num_rows * s.num_slices;
    s.slices = reinterpret_cast<SliceCounts*>(memory);
    s.last_of_tie = reinterpret_cast<uint16_t*>(s.slices + slices);
    s.last_bits = reinterpret_cast<int32_t*>(s.last_of_tie + slices * kSliceKeys);
    s.states = reinterpret_cast<RowState*>(s.last_bits + num_rows * kLastBins);
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
