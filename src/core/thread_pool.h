// A fixed set of workers for the step loop. Between two calls they spin for a short while, then
// sleep, so that a step's many short loops cost a fraction of a microsecond each to hand out.
// One thread at a time may call Run; the caller works along as worker 0.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace hillstar {

class ThreadPool {
 public:
  // num_threads >= 1, the caller included. Errors: kBudget if the system gives no more threads.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return int(workers_.size()) + 1; }

  // Calls fn(item, worker) for every item in [0, num_items), each once, in no fixed order; returns
  // when all are done. fn must not throw and must not call Run. REQUIRES num_items < 2^32.
  template <typename Fn>
  void Run(int64_t num_items, const Fn& fn) {
    if (num_items <= 1 || workers_.empty()) {
      for (int64_t i = 0; i < num_items; ++i) fn(i, 0);
      return;
    }
    Dispatch(
        num_items, [](const void* f, int64_t i, int w) { (*static_cast<const Fn*>(f))(i, w); },
        &fn);
  }

 private:
  using Call = void (*)(const void*, int64_t, int);
  void Dispatch(int64_t num_items, Call call, const void* fn);
  void WorkerLoop(int worker);
  void Stop();
  void DoItems(uint64_t epoch, int worker) noexcept;  // an item that throws ends the program

  std::vector<std::thread> workers_;
  // Published by `ticket_`; stable while an item of its epoch is not done.
  Call call_ = nullptr;
  const void* fn_ = nullptr;
  // Upper 32 bits: low bits of the epoch; lower: items not yet taken. A late worker of an old epoch
  // cannot take an item of a new one.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint64_t> epoch_{0};
  std::atomic<int64_t> num_done_{0};
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace hillstar
