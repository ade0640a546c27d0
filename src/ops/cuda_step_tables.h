// What a step's kernels read of the step, in the GPU's memory: tokens, positions, page tables. The
// tables of sequences stay there from step to step, and only what changed is sent. One thread.
#pragma once

#include <cuda_runtime.h>

#include <unordered_map>
#include <vector>

#include "device/cuda/cuda_memory.h"
#include "ops/ops.h"

namespace hillstar::cuda {

class StepTables {
 public:
  // Takes all its memory. Errors: kBudget.
  StepTables(CudaMemory& memory, const Ops::Limits& limits);
  static uint64_t Bytes(const Ops::Limits& limits);

  // Sends the step. num_tokens: that it is shaped for, at least those of the input. The tokens
  // behind those have id and position 0 and the pages of the last.
  StepTokens Send(const StepInput& input, int64_t num_tokens);
  // The step after one that was sent, or after another of these, of the same sequences, whose ids
  // and positions the GPU has written: sends what changed of the pages.
  StepTokens SendNext(const StepInput& input, int64_t num_tokens);
  // Of a step that was sent, without the tokens before row `first`.
  StepTokens DropRowsBefore(const StepTokens& step, int64_t first);

  // Bytes of page tables that Send has sent so far: for tests.
  uint64_t table_bytes_sent() const { return table_bytes_sent_; }

 private:
  // A row of the table in the GPU's memory, and what is there.
  struct Slot {
    uint64_t sequence = 0;
    uint64_t version = 0;
    uint64_t last_step = 0;
    std::vector<PageId> ids;
  };
  struct Layout;  // of the block that is sent as a whole

  size_t SlotOf(const PageList& pages);
  // The row of every sequence of the step in page_ids (may be null), with its changes sent. Returns
  // the largest position + 1.
  int64_t SendPages(const StepInput& input, int64_t num_tokens, const PageId** page_ids);
  StepTokens View(int64_t num_tokens, int64_t max_positions) const;
  void SendChanges(const PageList& pages, size_t slot);
  void SendAddresses(const PageAddresses& memory);
  PageId* Row(size_t slot) const { return tables_ + int64_t(slot) * pages_per_sequence_; }

  CudaMemory& memory_;
  const int64_t max_tokens_;
  const int64_t pages_per_sequence_;
  const int64_t max_pages_;
  DeviceBuffer buffer_;
  PageId* tables_ = nullptr;           // [slots, pages_per_sequence]
  uint8_t** latent_memory_ = nullptr;  // [max_pages]
  uint8_t** index_memory_ = nullptr;   // [max_pages]
  uint8_t* tokens_ = nullptr;          // a Layout's bytes
  int64_t num_addresses_ = 0;          // pages whose addresses are there
  std::vector<Slot> slots_;
  std::unordered_map<uint64_t, size_t> slot_of_;  // by sequence
  std::vector<const PageId*> rows_;               // of the step's tokens
  uint64_t step_ = 0;
  uint64_t table_bytes_sent_ = 0;
};

}  // namespace hillstar::cuda
