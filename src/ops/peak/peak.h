// The fastest that a level can multiply bytes: independent chains of its four-byte dot products,
// whose sums stay in registers. No linear layer and no attention can be faster; bench states their
// share.
//
// PeakDots(rounds) does rounds * kPeakProductsPerRound products of two bytes in the calling thread
// and returns a value that depends on all of them.
#pragma once

#include <cstdint>

namespace hillstar {

inline constexpr int kPeakChains = 8;  // enough to hide an instruction's latency, in registers
inline constexpr int64_t kPeakProductsPerRound = int64_t{kPeakChains} * 64;

}  // namespace hillstar
