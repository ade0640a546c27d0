#include "core/thread_pool.h"

#include <string>
#include <system_error>

#include "core/check.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// About 50 microseconds: longer than any gap inside a step, short enough to free an idle machine.
constexpr int kSpins = 20000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK(num_threads >= 1);
  try {
    for (int w = 1; w < num_threads; ++w) workers_.emplace_back([this, w] { WorkerLoop(w); });
  } catch (const std::system_error&) {
    const size_t started = workers_.size() + 1;
    Stop();
    throw Error(ErrorCode::kBudget, "only " + std::to_string(started) + " of " +
                                        std::to_string(num_threads) +
                                        " threads could be started (--threads)");
  }
}

ThreadPool::~ThreadPool() { Stop(); }

void ThreadPool::Stop() {
  stop_.store(true);
  epoch_.fetch_add(1);
  {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::Dispatch(int64_t num_items, Call call, const void* fn) {
  CHECK(num_items < (int64_t{1} << 32));
  const uint64_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  call_ = call;
  fn_ = fn;
  num_done_.store(0, std::memory_order_relaxed);
  ticket_.store(epoch << 32 | uint64_t(num_items), std::memory_order_release);
  epoch_.store(epoch);  // sequentially consistent with num_sleeping_ below
  if (num_sleeping_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  DoItems(epoch, 0);
  for (int spins = 0; num_done_.load(std::memory_order_acquire) < num_items; ++spins) {
    Pause();
    if (spins > kSpins) std::this_thread::yield();  // a worker lost its core: let it have one
  }
}

void ThreadPool::DoItems(uint64_t epoch, int worker) noexcept {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while ((ticket >> 32) == (epoch & 0xffffffffu)) {
    const int64_t remaining = int64_t(ticket & 0xffffffffu);
    if (remaining == 0) return;
    if (ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) {
      call_(fn_, remaining - 1, worker);
      num_done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen = 0;
  while (true) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        Pause();
        continue;
      }
      std::unique_lock lock(mutex_);
      num_sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return epoch_.load() != seen; });
      num_sleeping_.fetch_sub(1);
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    DoItems(seen, worker);
  }
}

}  // namespace hillstar
