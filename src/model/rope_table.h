// Rows of RoPE's table, made once for each position and kept: cosines and sines take as long as a
// tenth of a small model's layer.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace hillstar {

class RopeTable {
 public:
  // rope: rotated dimensions, even. `memory` gives room for max_positions rows and outlives the
  // object; memory is touched as rows are made.
  RopeTable(WorkspaceMemory& memory, int64_t rope, double theta, int64_t max_positions);

  static uint64_t Bytes(int64_t rope, int64_t max_positions) {
    return uint64_t(rope * max_positions) * sizeof(float);
  }

  // Rows [0, end) exist from here on. REQUIRES end <= max_positions.
  void Reserve(int64_t end);
  // f32 [positions, rope]: cosines, then sines, rounded from double precision.
  const float* rows() const { return rows_; }

 private:
  WorkspaceMemory& memory_;
  std::vector<double> frequencies_;  // [rope / 2]
  int64_t max_positions_;
  int64_t num_rows_ = 0;
  float* rows_;
  std::vector<float> made_;  // on their way to rows_
};

}  // namespace hillstar
