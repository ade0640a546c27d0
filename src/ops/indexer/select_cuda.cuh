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
// Tokens go in rounds of as many rows as fit, at least one.
inline constexpr int64_t kMaxScoreBytes = int64_t{256} << 20;

// counts[t] = 0 of all live tokens.
void ClearCounts(const KernelContext& context, const SelectTask& task);
// Lists and counts of tokens [first, first + count), row i being of token first + i: the max_keys
// largest by (value descending, index ascending), in ascending order. A row with a value that is
// not finite is noted as bad and gets 0, 1, 2 ...
void SelectTopKeys(const KernelContext& context, const SelectTask& task, const ScoreRows& rows,
                   int64_t first, int64_t count);

}  // namespace hillstar::cuda
