// The machine's read bandwidth, measured: the bound of every decode on a CPU.
#pragma once

#include <cstdint>

namespace hillstar {

// Bytes a second that `num_threads` threads read together from a buffer of `buffer_bytes`, which
// should be several times the last cache: the best of `repeat` passes. Starts and ends its own
// threads; takes buffer_bytes of memory meanwhile. REQUIRES num_threads >= 1, repeat >= 1.
double MeasureReadBandwidth(int num_threads, uint64_t buffer_bytes, int repeat);

// A buffer size for it: 1 GiB, or a quarter of the memory that is free if that is less.
uint64_t BandwidthBufferBytes();

}  // namespace hillstar
