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

// At most 4 GiB of a model's weights: reading them is the bound of its decode, and how fast memory
// is depends on where it lies. Empty if they would fit a cache.
std::vector<std::span<const uint8_t>> WeightsToRead(std::vector<std::span<const uint8_t>> weights);

// MeasureReadBandwidth of a buffer of 1 GiB, or a quarter of the free memory if that is less.
double MeasureBufferBandwidth(int num_threads);

}  // namespace hillstar
