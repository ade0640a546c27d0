#include <algorithm>

#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "device/cuda/scatter.h"

namespace hillstar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kBlocksPerSpan = 8;
// Spans of one launch, which its parameters hold: within the 4 KB that every GPU takes.
constexpr int kSpansAtOnce = 128;

struct Spans {
  uint8_t* data[kSpansAtOnce];
  size_t at[kSpansAtOnce + 1];  // of the packed bytes
};

// Bytes of one span between `data` and `packed`, by words where both lie so.
template <bool kScatters>
__global__ void __launch_bounds__(kThreads)
    MoveKernel(const __grid_constant__ Spans spans, uint8_t* packed) {
  WaitForPrevious();
  LetNextBegin();
  uint8_t* data = spans.data[blockIdx.y];
  uint8_t* bytes = packed + spans.at[blockIdx.y];
  const size_t n = spans.at[blockIdx.y + 1] - spans.at[blockIdx.y];
  const size_t first = size_t(blockIdx.x) * kThreads + threadIdx.x;
  const size_t stride = size_t(gridDim.x) * kThreads;
  uint8_t* to = kScatters ? data : bytes;
  const uint8_t* from = kScatters ? bytes : data;
  const bool has_words = ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) &
                          (sizeof(uint4) - 1)) == 0;
  const size_t num_words = has_words ? n / sizeof(uint4) : 0;
  for (size_t i = first; i < num_words; i += stride) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  for (size_t i = num_words * sizeof(uint4) + first; i < n; i += stride) to[i] = from[i];
}

template <bool kScatters>
void Move(std::span<const DeviceSpan> all, uint8_t* packed, cudaStream_t stream) {
  size_t at = 0;
  while (!all.empty()) {
    const size_t count = std::min<size_t>(all.size(), kSpansAtOnce);
    Spans spans;
    for (size_t i = 0; i < count; ++i) {
      spans.data[i] = all[i].data;
      spans.at[i] = at;
      at += all[i].size;
    }
    spans.at[count] = at;
    Launch(kScatters ? "scattering pages" : "gathering pages", MoveKernel<kScatters>,
           {dim3(kBlocksPerSpan, unsigned(count)), dim3(kThreads)}, stream, spans, packed);
    all = all.subspan(count);
  }
}

}  // namespace

void Scatter(std::span<const DeviceSpan> to, const uint8_t* packed, cudaStream_t stream) {
  Move<true>(to, const_cast<uint8_t*>(packed), stream);
}

void Gather(std::span<const DeviceSpan> from, uint8_t* packed, cudaStream_t stream) {
  Move<false>(from, packed, stream);
}

}  // namespace hillstar::cuda
