// The machine's read bandwidth, measured: the bound of every decode on a CPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hillstar {

// Bytes a second that `num_threads` threads read together from `memory`, in whole pieces of 4 MiB:
// the best of `repeat` passes. Starts and ends its own threads. REQUIRES num_threads >= 1, repeat
// >= 1, at least one piece.
double MeasureReadBandwidth(int num_threads, std::span<const std::span<const uint8_t>> memory,
                            int repeat);

// The bound of a model's decode: reads the model's own weights, up to 4 GiB of them, since how fast
// memory is depends on where it lies; where they would fit a cache, a buffer of 1 GiB (or a quarter
// of the free memory) in their place.
double MeasureWeightBandwidth(int num_threads, std::vector<std::span<const uint8_t>> weights);

}  // namespace hillstar
