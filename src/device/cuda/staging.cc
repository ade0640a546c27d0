#include "device/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/integers.h"
#include "device/cuda/launch.cuh"

namespace hillstar::cuda {
namespace {

constexpr size_t kAlign = 256;

}  // namespace

Staging::Staging(cudaStream_t stream, size_t block_bytes, int num_blocks)
    : stream_(stream), block_bytes_(block_bytes), blocks_(size_t(num_blocks)) {
  for (Block& block : blocks_) {
    Check(cudaHostAlloc(&block.data, block_bytes, cudaHostAllocDefault), "taking pinned memory");
    Check(cudaEventCreateWithFlags(&block.done, cudaEventDisableTiming), "making an event");
  }
}

Staging::~Staging() {
  for (const Block& block : blocks_) {
    if (block.is_used) cudaEventSynchronize(block.done);
    cudaEventDestroy(block.done);
    cudaFreeHost(block.data);
  }
}

void Staging::NextBlock() {
  Block& full = blocks_[current_];
  Check(cudaEventRecord(full.done, stream_), "recording an event");
  full.is_used = true;
  current_ = (current_ + 1) % blocks_.size();
  taken_ = 0;
  const Block& next = blocks_[current_];
  if (next.is_used) Check(cudaEventSynchronize(next.done), "waiting for copies to the GPU");
}

uint8_t* Staging::Take(size_t num_bytes) {
  CHECK(num_bytes <= block_bytes_);
  if (taken_ + num_bytes > block_bytes_) NextBlock();
  uint8_t* taken = blocks_[current_].data + taken_;
  taken_ += size_t(RoundUp(int64_t(num_bytes), int64_t(kAlign)));
  return taken;
}

void Staging::Upload(void* to, const void* from, size_t num_bytes) {
  auto* target = static_cast<uint8_t*>(to);
  const auto* source = static_cast<const uint8_t*>(from);
  while (num_bytes > 0) {
    const size_t n = std::min(num_bytes, block_bytes_);
    uint8_t* pinned = Take(n);
    std::memcpy(pinned, source, n);
    Check(cudaMemcpyAsync(target, pinned, n, cudaMemcpyHostToDevice, stream_),
          "copying to the GPU");
    target += n;
    source += n;
    num_bytes -= n;
  }
}

}  // namespace hillstar::cuda
