#include "ops/cuda_step_tables.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/integers.h"
#include "device/cuda/launch.cuh"

namespace hillstar::cuda {
namespace {

constexpr int64_t kAlign = 256;

int64_t NumSlots(const Ops::Limits& limits) { return limits.max_sequences; }
int64_t PagesPerSequence(const Ops::Limits& limits) {
  return CeilDiv(limits.max_context, kPageTokens);
}

}  // namespace

// Counts of living tokens (of the whole step, and behind dropped rows), then the arrays.
struct StepTables::Layout {
  int64_t positions, page_ids, ids, num_bytes;

  explicit Layout(int64_t max_tokens) {
    positions = kAlign;
    page_ids = positions + RoundUp(max_tokens * int64_t(sizeof(int64_t)), kAlign);
    ids = page_ids + RoundUp(max_tokens * int64_t(sizeof(PageId*)), kAlign);
    num_bytes = ids + RoundUp(max_tokens * int64_t(sizeof(int32_t)), kAlign);
  }
};

uint64_t StepTables::Bytes(const Ops::Limits& limits) {
  const int64_t tables = NumSlots(limits) * PagesPerSequence(limits) * int64_t(sizeof(PageId));
  const int64_t addresses = limits.max_pages * int64_t(sizeof(uint8_t*));
  return uint64_t(RoundUp(tables, kAlign) + 2 * RoundUp(addresses, kAlign) +
                  Layout(limits.max_tokens).num_bytes);
}

StepTables::StepTables(CudaMemory& memory, const Ops::Limits& limits)
    : memory_(memory),
      max_tokens_(limits.max_tokens),
      pages_per_sequence_(PagesPerSequence(limits)),
      max_pages_(limits.max_pages),
      buffer_(memory.Alloc(MemoryTag::kWorkspace, Bytes(limits))),
      slots_(size_t(NumSlots(limits))) {
  uint8_t* at = buffer_.data();
  tokens_ = at;
  at += Layout(max_tokens_).num_bytes;
  latent_memory_ = reinterpret_cast<uint8_t**>(at);
  at += RoundUp(max_pages_ * int64_t(sizeof(uint8_t*)), kAlign);
  index_memory_ = reinterpret_cast<uint8_t**>(at);
  at += RoundUp(max_pages_ * int64_t(sizeof(uint8_t*)), kAlign);
  tables_ = reinterpret_cast<PageId*>(at);
}

// The slot of the pages' sequence; of a new one, the slot that was used longest ago.
size_t StepTables::SlotOf(const PageList& pages) {
  const auto found = slot_of_.find(pages.sequence);
  if (found != slot_of_.end()) return found->second;
  const auto oldest = std::ranges::min_element(slots_, {}, &Slot::last_step);
  CHECK(oldest->last_step < step_);  // a step has no more sequences than there are slots
  if (oldest->last_step > 0) slot_of_.erase(oldest->sequence);
  const auto slot = size_t(oldest - slots_.begin());
  *oldest = {};
  oldest->sequence = pages.sequence;
  slot_of_[pages.sequence] = slot;
  return slot;
}

void StepTables::SendChanges(const PageList& pages, size_t number) {
  Slot& slot = slots_[number];
  slot.last_step = step_;
  if (slot.version == pages.version) return;
  CHECK(pages.num_pages <= pages_per_sequence_);
  const std::span<const PageId> now(pages.ids, size_t(pages.num_pages));
  const auto same = std::ranges::mismatch(slot.ids, now);
  const auto first = size_t(same.in2 - now.begin());
  if (first < now.size()) {
    const size_t num_bytes = (now.size() - first) * sizeof(PageId);
    memory_.staging().Upload(Row(number) + first, now.data() + first, num_bytes);
    table_bytes_sent_ += num_bytes;
  }
  slot.ids.assign(now.begin(), now.end());
  slot.version = pages.version;
}

void StepTables::SendAddresses(const PageAddresses& memory) {
  CHECK(memory.num_pages <= max_pages_);
  const int64_t count = memory.num_pages - num_addresses_;
  if (count <= 0) return;
  const size_t num_bytes = size_t(count) * sizeof(uint8_t*);
  memory_.staging().Upload(latent_memory_ + num_addresses_, memory.latents + num_addresses_,
                           num_bytes);
  memory_.staging().Upload(index_memory_ + num_addresses_, memory.index_keys + num_addresses_,
                           num_bytes);
  num_addresses_ = memory.num_pages;
}

int64_t StepTables::SendPages(const StepInput& input, int64_t num_tokens, const PageId** page_ids) {
  ++step_;
  SendAddresses(input.memory);
  int64_t end = 0;
  const PageId* row = nullptr;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const bool lives = t < input.num_tokens;
    if (lives && (t == 0 || input.pages[t].sequence != input.pages[t - 1].sequence)) {
      const size_t slot = SlotOf(input.pages[t]);
      SendChanges(input.pages[t], slot);
      row = Row(slot);
    }
    if (lives) end = std::max(end, input.positions[t] + 1);
    if (page_ids) page_ids[t] = row;
  }
  return end;
}

StepTokens StepTables::View(int64_t num_tokens, int64_t max_positions) const {
  const Layout layout(max_tokens_);
  StepTokens step;
  step.num_tokens = num_tokens;
  step.live = reinterpret_cast<const int32_t*>(tokens_);
  step.ids = reinterpret_cast<const int32_t*>(tokens_ + layout.ids);
  step.positions = reinterpret_cast<const int64_t*>(tokens_ + layout.positions);
  step.max_positions = max_positions;
  step.page_ids = reinterpret_cast<const PageId* const*>(tokens_ + layout.page_ids);
  step.latent_memory = latent_memory_;
  step.index_memory = index_memory_;
  return step;
}

StepTokens StepTables::Send(const StepInput& input, int64_t num_tokens) {
  CHECK(input.num_tokens >= 1 && input.num_tokens <= num_tokens && num_tokens <= max_tokens_);
  const Layout layout(max_tokens_);
  const int64_t num_bytes = layout.ids + num_tokens * int64_t(sizeof(int32_t));
  rows_.resize(size_t(num_tokens));
  const int64_t end = SendPages(input, num_tokens, rows_.data());
  uint8_t* block = memory_.staging().Take(size_t(num_bytes));
  auto* counts = reinterpret_cast<int32_t*>(block);
  counts[0] = counts[1] = int32_t(input.num_tokens);
  auto* positions = reinterpret_cast<int64_t*>(block + layout.positions);
  auto* page_ids = reinterpret_cast<const PageId**>(block + layout.page_ids);
  auto* ids = reinterpret_cast<int32_t*>(block + layout.ids);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const bool lives = t < input.num_tokens;
    positions[t] = lives ? input.positions[t] : 0;
    page_ids[t] = rows_[size_t(t)];
    ids[t] = lives ? input.ids[t] : 0;
  }
  Check(
      cudaMemcpyAsync(tokens_, block, size_t(num_bytes), cudaMemcpyHostToDevice, memory_.stream()),
      "sending a step");
  return View(num_tokens, end);
}

StepTokens StepTables::SendNext(const StepInput& input, int64_t num_tokens) {
  return View(num_tokens, SendPages(input, num_tokens, nullptr));
}

StepTokens StepTables::DropRowsBefore(const StepTokens& step, int64_t first) {
  StepTokens rest = step;
  rest.num_tokens -= first;
  rest.ids += first;
  rest.positions += first;
  rest.page_ids += first;
  // The second count is that of the rows that are left.
  auto* live = reinterpret_cast<int32_t*>(tokens_) + 1;
  const auto count = int32_t(rest.num_tokens);
  memory_.staging().Upload(live, &count, sizeof count);
  rest.live = live;
  return rest;
}

}  // namespace hillstar::cuda
