#include "emulated_threads.h"

#include <fmt/format.h>

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <boost/context/preallocated.hpp>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulated_fibers.h"
#include "emulated_schedule.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace hillstar::emulated {
namespace {

namespace ctx = boost::context;

constexpr int kPoison = 0xa5;                          // of shared memory that nobody has written
constexpr uint64_t kBarrierMark = 0xb0b0b0b0b0b0b0b0;  // what lies where a barrier is
constexpr size_t kStackBytes = size_t{128} << 10;

enum class State { kReady, kAtBlockBarrier, kAtWarp, kDone, kPolling };

struct Copy {
  void* to;
  const void* from;
  size_t num_bytes;
  bool valid;
  int64_t group;
};

struct Thread {
  ctx::fiber fiber;   // of the thread while it waits
  ctx::fiber caller;  // of the scheduler while the thread runs
  SwitchedStack own;
  State state = State::kReady;
  dim3 index;
  uint32_t mask = 0;  // of the lanes that it waits for
  void* arguments = nullptr;
  std::deque<Copy> copies;  // on their way
  int64_t num_groups = 0;   // of copies, committed
};

struct Barrier {
  int arrivals = 0;           // of a phase
  int arrived = 0;            // in this one
  int64_t missing_bytes = 0;  // of copies that this one expects
  int64_t num_phases = 0;     // that have ended
  std::vector<Copy> copies;   // that nobody has waited for

  void EndPhase();
};

struct Block {
  const char* kernel = "";
  std::vector<std::unique_ptr<Thread>> threads;  // of the largest block so far
  size_t num_threads = 0;
  const std::function<void()>* thread = nullptr;  // null: fibers end
  int64_t num_done = 0;
  int64_t num_at_barrier = 0;
  std::vector<uint64_t> shared;  // dynamic, 8-byte words
  uint8_t* shared_bytes = nullptr;
  std::map<const uint64_t*, Barrier> barriers;
  uint64_t num_phases = 0;  // of barriers, that have ended

  ~Block();
};

Block block;
size_t running = 0;  // thread of the block
uint64_t num_grids = 0;
Schedule schedule;
ctx::pooled_fixedsize_stack stacks(kStackBytes, 64);
SwitchedStack scheduler;

void Barrier::EndPhase() {
  if (arrived < arrivals || missing_bytes != 0) return;
  arrived = 0;
  ++num_phases;
  ++block.num_phases;
}

void Finish(const Copy& copy) {
  if (copy.valid) {
    std::memcpy(copy.to, copy.from, copy.num_bytes);
  } else {
    std::memset(copy.to, 0, copy.num_bytes);
  }
}

// To the scheduler, until it goes on with this thread.
void Leave(Thread& me) {
  me.own.LeaveFor(scheduler);
  me.caller = std::move(me.caller).resume();
  me.own.Enter(&scheduler);
}

void Wait(State state) {
  Thread& me = *block.threads[running];
  me.state = state;
  Leave(me);
}

void Resume(size_t i) {
  Thread& t = *block.threads[i];
  running = i;
  threadIdx = t.index;
  scheduler.LeaveFor(t.own);
  t.fiber = std::move(t.fiber).resume();
  scheduler.Enter(nullptr);
}

// Fibers that end on their own need not be unwound, which the address checks cannot follow.
Block::~Block() {
  thread = nullptr;
  for (size_t i = 0; i < threads.size(); ++i) Resume(i);
}

[[noreturn]] void Fail(const std::string& what) {
  fmt::print(stderr, "{}, block ({}, {}, {}): {}\n", block.kernel, blockIdx.x, blockIdx.y,
             blockIdx.z, what);
  std::abort();
}

[[noreturn]] void Deadlock() {
  int counts[5] = {};
  for (size_t i = 0; i < block.num_threads; ++i) ++counts[int(block.threads[i]->state)];
  Fail(fmt::format(
      "threads wait for others that do not come: {} at the block's barrier, {} at their "
      "warp's, {} at one in shared memory, {} have ended",
      counts[1], counts[2], counts[4], counts[3]));
}

// Fibers stay from block to block: a thread that has ended waits for the next one's work.
void StartThreads(dim3 size, const std::function<void()>& thread) {
  const size_t count = size_t(size.x) * size.y * size.z;
  block.thread = &thread;
  block.num_threads = count;
  block.num_done = block.num_at_barrier = 0;
  block.barriers.clear();
  while (block.threads.size() < count) {
    Thread& t = *block.threads.emplace_back(std::make_unique<Thread>());
    const ctx::stack_context stack = stacks.allocate();
    t.own.Begin(static_cast<uint8_t*>(stack.sp) - stack.size, stack.size);
    const ctx::preallocated whole(stack.sp, stack.size, stack);
    t.fiber = ctx::fiber(std::allocator_arg, whole, stacks, [&t](ctx::fiber&& caller) {
      t.own.Enter(&scheduler);
      t.caller = std::move(caller);
      while (block.thread) {
        (*block.thread)();
        ++block.num_done;
        t.state = State::kDone;
        Leave(t);
      }
      t.own.LeaveFor(scheduler);
      return std::move(t.caller);
    });
  }
  for (size_t i = 0; i < count; ++i) {
    Thread& t = *block.threads[i];
    t.state = State::kReady;
    t.copies.clear();
    t.num_groups = 0;
    t.index =
        dim3(unsigned(i % size.x), unsigned(i / size.x % size.y), unsigned(i / size.x / size.y));
  }
}

// Every phase of every barrier is whole.
void CheckBarriers() {
  for (const auto& [address, barrier] : block.barriers) {
    if (barrier.arrived == 0 && barrier.missing_bytes == 0) continue;
    Fail(fmt::format("a barrier of {} arrivals is left with {} arrivals and without {} bytes",
                     barrier.arrivals, barrier.arrived, barrier.missing_bytes));
  }
}

void RunBlock(dim3 size, const std::function<void()>& thread) {
  StartThreads(size, thread);
  const size_t count = block.num_threads;
  schedule.BeginBlock(count);
  while (block.num_done < int64_t(count)) {
    bool any = false;
    const uint64_t phases = block.num_phases;
    for (const size_t i : schedule.NextSweep()) {
      const State state = block.threads[i]->state;
      if (state != State::kReady && state != State::kPolling) continue;
      Resume(i);
      any |= state == State::kReady || block.threads[i]->state != State::kPolling;
    }
    if (block.num_at_barrier > 0 && block.num_at_barrier + block.num_done == int64_t(count)) {
      for (size_t i = 0; i < count; ++i) {
        Thread& t = *block.threads[i];
        if (t.state == State::kAtBlockBarrier) t.state = State::kReady;
      }
      block.num_at_barrier = 0;
      any = true;
    }
    if (!any && phases == block.num_phases && !schedule.Release()) Deadlock();
  }
  CheckBarriers();
}

}  // namespace

void RunGrid(const char* kernel, dim3 grid, dim3 size, size_t dynamic_shared,
             const std::function<void()>& thread) {
  block.kernel = kernel;
  schedule.BeginGrid(num_grids);
  constexpr size_t kAlign = 128;
  block.shared.assign((dynamic_shared + kAlign) / 8 + 1, 0xa5a5a5a5a5a5a5a5u);
  const auto address = reinterpret_cast<uintptr_t>(block.shared.data());
  block.shared_bytes = reinterpret_cast<uint8_t*>((address + kAlign - 1) / kAlign * kAlign);
  gridDim = grid;
  blockDim = size;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        RunBlock(size, thread);
      }
    }
  }
  ++num_grids;
}

uint8_t* DynamicSharedBytes() { return block.shared_bytes; }

void BlockBarrier() {
  ++block.num_at_barrier;
  Wait(State::kAtBlockBarrier);
}

void WarpTogether(uint32_t mask, void* arguments, void (*together)(void* const* lanes)) {
  const size_t first = running / kWarp * kWarp, me = running - first;
  Thread& mine = *block.threads[running];
  mine.arguments = arguments;
  mine.mask = mask;
  void* lanes[kWarp] = {};
  for (size_t i = 0; i < size_t(kWarp); ++i) {
    if (!(mask >> i & 1) || first + i >= block.num_threads) continue;
    const Thread& t = *block.threads[first + i];
    if (i != me && t.state != State::kAtWarp) return Wait(State::kAtWarp);
    if (t.mask != mask) Fail("lanes of one warp wait for different lanes");
    lanes[i] = t.arguments;
  }
  together(lanes);
  for (size_t i = 0; i < size_t(kWarp); ++i) {
    if (lanes[i] && i != me) block.threads[first + i]->state = State::kReady;
  }
}

void DeferCopy(void* to, const void* from, size_t num_bytes, bool valid) {
  std::memset(to, kPoison, num_bytes);
  Thread& me = *block.threads[running];
  me.copies.push_back({to, from, num_bytes, valid, me.num_groups});
}

void CommitCopyGroup() { ++block.threads[running]->num_groups; }

void FinishCopies(int pending) {
  Thread& me = *block.threads[running];
  while (!me.copies.empty() && me.copies.front().group < me.num_groups - pending) {
    Finish(me.copies.front());
    me.copies.pop_front();
  }
}

namespace {

Barrier& BarrierAt(const uint64_t* address) {
  const auto found = block.barriers.find(address);
  if (found != block.barriers.end() && *address == kBarrierMark) return found->second;
  Fail("a barrier is used that nobody has begun, or that was written over");
}

}  // namespace

void InitBarrier(uint64_t* barrier, int arrivals) {
  if (arrivals < 1) Fail(fmt::format("a barrier of {} arrivals", arrivals));
  Barrier& b = block.barriers[barrier] = Barrier();
  b.arrivals = arrivals;
  *barrier = kBarrierMark;
}

void Arrive(uint64_t* barrier, size_t expected_bytes) {
  Barrier& b = BarrierAt(barrier);
  ++b.arrived;
  b.missing_bytes += int64_t(expected_bytes);
  b.EndPhase();
}

void BulkCopy(void* to, const void* from, size_t num_bytes, uint64_t* barrier) {
  if (num_bytes == 0 || num_bytes % 16 != 0) {
    Fail(fmt::format("a bulk copy of {} bytes", num_bytes));
  }
  Barrier& b = BarrierAt(barrier);
  std::memset(to, kPoison, num_bytes);
  b.copies.push_back({to, from, num_bytes, true, b.num_phases});
  b.missing_bytes -= int64_t(num_bytes);
  b.EndPhase();
}

void ArriveAfterCopies(uint64_t* barrier) {
  Barrier& b = BarrierAt(barrier);
  Thread& me = *block.threads[running];
  for (Copy copy : me.copies) {
    copy.group = b.num_phases;
    b.copies.push_back(copy);
  }
  me.copies.clear();
  Arrive(barrier, 0);
}

void WaitForBarrier(uint64_t* barrier, uint32_t parity) {
  Barrier& b = BarrierAt(barrier);
  while (b.num_phases % 2 == parity) Wait(State::kPolling);
  block.threads[running]->state = State::kReady;
  for (const Copy& copy : b.copies) {
    if (copy.group < b.num_phases) Finish(copy);
  }
  std::erase_if(b.copies, [&](const Copy& copy) { return copy.group < b.num_phases; });
}

void SyncWarps(int number, int threads) {
  static uint64_t numbers[16];  // stand for barriers
  uint64_t* const barrier = &numbers[number];
  if (!block.barriers.contains(barrier)) InitBarrier(barrier, threads);
  Barrier& b = BarrierAt(barrier);
  b.arrivals = threads;
  const auto parity = uint32_t(b.num_phases % 2);
  Arrive(barrier, 0);
  WaitForBarrier(barrier, parity);
}

uint64_t NumGrids() { return num_grids; }

}  // namespace hillstar::emulated

namespace {

struct Vote {
  int predicate;
  unsigned result;
};

int votes;  // of a block

}  // namespace

unsigned __ballot_sync(unsigned mask, int predicate) {
  Vote mine{predicate, 0};
  hillstar::emulated::WarpTogether(mask, &mine, [](void* const* lanes) {
    unsigned bits = 0;
    for (int i = 0; i < 32; ++i) {
      const auto* lane = static_cast<const Vote*>(lanes[i]);
      if (lane && lane->predicate) bits |= 1u << i;
    }
    for (int i = 0; i < 32; ++i) {
      if (lanes[i]) static_cast<Vote*>(lanes[i])->result = bits;
    }
  });
  return mine.result;
}

int __syncthreads_count(int predicate) {
  __syncthreads();
  votes = 0;
  __syncthreads();
  votes += predicate != 0;
  __syncthreads();
  return votes;
}

int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
