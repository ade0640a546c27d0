// Pinned host memory on the way to a device: blocks in a ring, each used again once the copies out
// of it are done. One thread.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hillstar::cuda {

class Staging {
 public:
  Staging(cudaStream_t stream, size_t block_bytes, int num_blocks);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  size_t block_bytes() const { return block_bytes_; }
  // Room for num_bytes, aligned to 256, whose contents the next copies on the stream may read.
  // Waits where the ring is full of copies under way. REQUIRES num_bytes <= block_bytes().
  uint8_t* Take(size_t num_bytes);
  // Copies through the ring to the device, in order with the stream's work.
  void Upload(void* to, const void* from, size_t num_bytes);

 private:
  struct Block {
    uint8_t* data = nullptr;
    cudaEvent_t done = nullptr;  // the copies out of it
    bool is_used = false;
  };
  void NextBlock();

  cudaStream_t stream_;
  const size_t block_bytes_;
  std::vector<Block> blocks_;
  size_t current_ = 0;
  size_t taken_ = 0;  // of the current block
};

}  // namespace hillstar::cuda
