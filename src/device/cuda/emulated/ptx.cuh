// The functions of hardware/ptx.cuh on the emulated device.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "numerics/weights.h"

namespace hillstar::cuda {

inline void WaitForPrevious() {}
inline void LetNextBegin() {}

inline float AddSaturated(float a, float b) { return std::clamp(a + b, 0.0f, 1.0f); }

namespace emulated_mma {

struct Lane {
  int* c;
  const uint32_t* a;
  uint32_t b[2];
};

template <typename A, typename B>
void Together(void* const* lanes) {
  int32_t a[16][32], b[8][32];
  for (int l = 0; l < 32; ++l) {
    const auto& lane = *static_cast<const Lane*>(lanes[l]);
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < 4; ++i) {
      for (int r = 0; r < 4; ++r) {
        a[g + 8 * (r % 2)][4 * t + i + 16 * (r / 2)] = A(lane.a[r] >> (8 * i));
      }
      for (int r = 0; r < 2; ++r) b[g][4 * t + i + 16 * r] = B(lane.b[r] >> (8 * i));
    }
  }
  for (int l = 0; l < 32; ++l) {
    int* c = static_cast<const Lane*>(lanes[l])->c;
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < 4; ++i) {
      const int32_t* row = a[g + 8 * (i / 2)];
      const int32_t* column = b[2 * t + i % 2];
      uint32_t sum = 0;
      for (int k = 0; k < 32; ++k) sum += uint32_t(row[k] * column[k]);
      c[i] = int(uint32_t(c[i]) + sum);
    }
  }
}

template <typename A, typename B>
void Mma(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Lane mine{c, a, {b0, b1}};
  emulated::WarpTogether(0xffffffffu, &mine, Together<A, B>);
}

}  // namespace emulated_mma

inline void MmaUnsignedSigned(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_mma::Mma<uint8_t, int8_t>(c, a, b0, b1);
}
inline void MmaSignedSigned(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_mma::Mma<int8_t, int8_t>(c, a, b0, b1);
}

struct EmulatedMatrixRow {
  const void* row;
  uint32_t* result;
};
inline void LoadMatrices(uint32_t (&r)[4], const void* row) {
  EmulatedMatrixRow mine{row, r};
  emulated::WarpTogether(0xffffffffu, &mine, [](void* const* lanes) {
    for (int l = 0; l < 32; ++l) {
      for (int m = 0; m < 4; ++m) {
        const auto* source = static_cast<const EmulatedMatrixRow*>(lanes[8 * m + l / 4]);
        std::memcpy(static_cast<EmulatedMatrixRow*>(lanes[l])->result + m,
                    static_cast<const uint8_t*>(source->row) + 4 * (l % 4), 4);
      }
    }
  });
}

inline void LoadMatricesTransposed(uint32_t (&r)[4], const void* row) {
  EmulatedMatrixRow mine{row, r};
  emulated::WarpTogether(0xffffffffu, &mine, [](void* const* lanes) {
    for (int l = 0; l < 32; ++l) {
      for (int m = 0; m < 4; ++m) {
        auto* to =
            reinterpret_cast<uint8_t*>(static_cast<EmulatedMatrixRow*>(lanes[l])->result + m);
        for (int i = 0; i < 2; ++i) {
          const auto* source =
              static_cast<const EmulatedMatrixRow*>(lanes[8 * m + 2 * (l % 4) + i]);
          std::memcpy(to + 2 * i, static_cast<const uint8_t*>(source->row) + 2 * (l / 4), 2);
        }
      }
    }
  });
}

inline uint4 LoadStreaming(const void* from) {
  uint4 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void CopyAsync16(void* shared, const void* from, bool valid = true) {
  emulated::DeferCopy(shared, from, 16, valid);
}
inline void CopyAsync4(void* shared, const void* from, bool valid = true) {
  emulated::DeferCopy(shared, from, 4, valid);
}
inline void CommitCopies() { emulated::CommitCopyGroup(); }
template <int kPending>
void WaitForCopies() {
  emulated::FinishCopies(kPending);
}

inline void SyncWarps(int number, int threads) { emulated::SyncWarps(number, threads); }

inline void InitBarrier(uint64_t* barrier, int arrivals) {
  emulated::InitBarrier(barrier, arrivals);
}
inline void FenceBarriers() {}
inline void Arrive(uint64_t* barrier) { emulated::Arrive(barrier, 0); }
inline void WaitForBarrier(uint64_t* barrier, uint32_t parity) {
  emulated::WaitForBarrier(barrier, parity);
}
inline void ArriveAfterCopies(uint64_t* barrier) { emulated::ArriveAfterCopies(barrier); }
// In every other grid only, so that kernels are run both ways.
inline bool HasBulkCopies() { return emulated::NumGrids() % 2 == 0; }
inline void ArriveExpecting(uint64_t* barrier, int bytes) {
  emulated::Arrive(barrier, size_t(bytes));
}
inline void BulkCopy(void* shared, const void* from, int bytes, uint64_t* barrier) {
  emulated::BulkCopy(shared, from, size_t(bytes), barrier);
}

inline void Forget(int&) {}
inline float HalfBitsToFloat(uint16_t bits) { return HalfToFloat(bits); }
inline float RoundToInteger(float x) { return std::rint(x); }

}  // namespace hillstar::cuda
