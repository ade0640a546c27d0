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
// are made, and slices of the row give up what may be among the largest.
inline constexpr int64_t kFewRows = 16;
inline constexpr int64_t kLongRow = 16384;
inline constexpr int kSliceKeys = 4096;
// What a slice gives up: candidates in larger bins than the one where the last of the largest lies,
// and in that bin; and the least and largest bits of the latter.
struct SliceCounts {
  int32_t above, in_bin;
  uint32_t least, largest;
};
struct SharedRows {
  int32_t* bins = nullptr;        // [rows, 2052]: counts, of scores that are not finite at 2048
  SliceCounts* slices = nullptr;  // [rows, slices of a row]
  uint2* candidates = nullptr;    // [rows, pitch]: bits and index, those of a slice where it lies
  int64_t num_slices = 0;         // of a row

  static constexpr int64_t kBinsPitch = 2052;
  static constexpr int64_t BytesOfRow(int64_t pitch) {
    return kBinsPitch * int64_t(sizeof(int32_t)) + pitch * int64_t(sizeof(uint2)) +
           CeilDiv(pitch, kSliceKeys) * int64_t(sizeof(SliceCounts));
  }
  // In BytesOfRow(pitch) * num_rows bytes, aligned to 16.
  static SharedRows In(uint8_t* memory, int64_t pitch, int64_t num_rows) {
    SharedRows s;
    s.num_slices = CeilDiv(pitch, kSliceKeys);
    s.bins = reinterpret_cast<int32_t*>(memory);
    memory += num_rows * kBinsPitch * int64_t(sizeof(int32_t));
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
// that is not finite is noted as bad and gets 0, 1, 2 ...
void SelectTopKeys(const KernelContext& context, const SelectTask& task, const ScoreRows& rows,
                   int64_t first, int64_t count);
// Likewise for rows of all tokens whose bins are counted.
void SelectFromSharedRows(const KernelContext& context, const SelectTask& task,
                          const ScoreRows& rows, const SharedRows& shared);
// Before they are counted: bins = 0.
void ClearBins(const KernelContext& context, const SharedRows& shared, int64_t num_rows);

}  // namespace hillstar::cuda
