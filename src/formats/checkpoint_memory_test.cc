// Every single allocation of opening a checkpoint fails once: the result is an Error, never a crash
// or another exception.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "formats/checkpoint.h"
#include "formats/safetensors_test_files.h"

namespace {
thread_local int64_t allocations_until_failure = -1;  // negative: none fails

void* Allocate(std::size_t num_bytes) {
  if (allocations_until_failure >= 0 && allocations_until_failure-- == 0) throw std::bad_alloc();
  void* const memory = std::malloc(num_bytes ? num_bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t num_bytes) { return Allocate(num_bytes); }
void* operator new[](std::size_t num_bytes) { return Allocate(num_bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace hillstar {
namespace {

TEST(CheckpointMemory, EveryFailedAllocationIsAnError) {
  TempFolder folder;
  folder.Write("a.safetensors",
               SafetensorsBytes({{"model.embed_tokens.weight", "U8", {64}, std::string(64, 'x')},
                                 {"model.embed_tokens.weight.qs", "F32", {2}, std::string(8, 'x')}},
                                R"({"colibri.fmt":"{\"model.embed_tokens.weight\":1}"})"));
  folder.Write("b.safetensors", SafetensorsBytes({{"model.norm.weight", "U8", {1}, "x"}}));
  folder.Write("model.safetensors.index.json",
               R"({"weight_map":{"model.norm.weight":"b.safetensors"}})");
  int64_t num_failures = 0;
  for (int64_t n = 0; n < 100000; ++n) {
    bool opened = false;
    bool reached = false;
    try {
      allocations_until_failure = n;
      opened = Checkpoint::Open(folder.path()) != nullptr;
      reached = allocations_until_failure < 0;
      allocations_until_failure = -1;
    } catch (const Error& e) {
      reached = true;
      allocations_until_failure = -1;
      EXPECT_EQ(e.code(), ErrorCode::kBudget) << e.what();
      ++num_failures;
    }
    if (opened && !reached) break;  // fewer than n allocations in all
  }
  EXPECT_GT(num_failures, 50);
}

}  // namespace
}  // namespace hillstar
