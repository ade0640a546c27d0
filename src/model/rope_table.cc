#include "model/rope_table.h"

#include <cmath>

#include "core/check.h"

namespace hillstar {

RopeTable::RopeTable(WorkspaceMemory& memory, int64_t rope, double theta, int64_t max_positions)
    : memory_(memory),
      max_positions_(max_positions),
      rows_(memory.AllocFloats(max_positions * rope)) {
  for (int64_t j = 0; j < rope / 2; ++j) {
    frequencies_.push_back(std::pow(theta, -2.0 * double(j) / double(rope)));
  }
}

void RopeTable::Reserve(int64_t end) {
  CHECK(end <= max_positions_);
  if (end <= num_rows_) return;
  const auto half = int64_t(frequencies_.size());
  made_.resize(size_t((end - num_rows_) * 2 * half));
  float* cos = made_.data();
  for (int64_t pos = num_rows_; pos < end; ++pos, cos += 2 * half) {
    for (int64_t j = 0; j < half; ++j) {
      const double angle = double(pos) * frequencies_[size_t(j)];
      cos[j] = float(std::cos(angle));
      cos[half + j] = float(std::sin(angle));
    }
  }
  memory_.Write(rows_ + num_rows_ * 2 * half, made_.data(), made_.size() * sizeof(float));
  num_rows_ = end;
}

}  // namespace hillstar
