#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "hillstar/error.h"

namespace hillstar {
namespace {

using std::chrono::milliseconds;

// Longer than the time a worker spins before it sleeps, on a slow machine too.
constexpr milliseconds kUntilAsleep{20};

TEST(ThreadPool, EveryItemOnce) {
  for (int threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int64_t items : {0, 1, 2, 3, 7, 8, 9, 1000}) {
      std::vector<std::atomic<int>> count(static_cast<size_t>(items));
      std::atomic<bool> wrong_worker{false};
      pool.Run(items, [&](int64_t i, int worker) {
        count[static_cast<size_t>(i)].fetch_add(1);
        if (worker < 0 || worker >= threads) wrong_worker = true;
      });
      for (int64_t i = 0; i < items; ++i) {
        ASSERT_EQ(count[static_cast<size_t>(i)].load(), 1) << threads << " threads, item " << i;
      }
      EXPECT_FALSE(wrong_worker);
    }
  }
}

// Plain (not atomic) writes of the items are seen by the caller after Run, and what the caller
// wrote before Run is seen by the items.
TEST(ThreadPool, RunOrdersMemory) {
  ThreadPool pool(4);
  std::vector<int64_t> in(64), out(64);
  for (int64_t round = 0; round < 2000; ++round) {
    std::iota(in.begin(), in.end(), round);
    pool.Run(64,
             [&](int64_t i, int) { out[static_cast<size_t>(i)] = 2 * in[static_cast<size_t>(i)]; });
    for (int64_t i = 0; i < 64; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], 2 * (round + i));
  }
}

// A worker may not hold two items at a time: what is kept per worker needs no lock.
TEST(ThreadPool, AWorkerDoesOneItemAtATime) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  int64_t done[kThreads] = {};
  for (int round = 0; round < 500; ++round) {
    pool.Run(32, [&](int64_t, int worker) { ++done[worker]; });
  }
  EXPECT_EQ(std::accumulate(done, done + kThreads, int64_t{0}), 500 * 32);
}

TEST(ThreadPool, ManySmallRunsInARow) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    int64_t sums[3] = {};
    for (int64_t round = 0; round < 100000; ++round) {
      pool.Run(3, [&](int64_t i, int) { sums[i] += i + round; });
    }
    const int64_t rounds = int64_t{100000} * 99999 / 2;
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(sums[i], rounds + 100000 * i) << threads;
  }
}

// An item that waits for another can only end if a second worker, asleep before, takes the other.
TEST(ThreadPool, SleepingWorkersWake) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(kUntilAsleep);
    std::atomic<int> arrived{0};
    std::atomic<bool> timed_out{false};
    pool.Run(2, [&](int64_t, int) {
      arrived.fetch_add(1);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (arrived.load() < 2 && !timed_out) {
        std::this_thread::yield();
        if (std::chrono::steady_clock::now() > deadline) timed_out = true;
      }
    });
    EXPECT_FALSE(timed_out) << "round " << round;
  }
}

TEST(ThreadPool, AllWorkersTakePart) {
  constexpr int kThreads = 8;
  ThreadPool pool(kThreads);
  std::atomic<int> arrived{0};
  std::atomic<bool> timed_out{false};
  std::vector<std::atomic<int>> by_worker(kThreads);
  pool.Run(kThreads, [&](int64_t, int worker) {
    by_worker[static_cast<size_t>(worker)].fetch_add(1);
    arrived.fetch_add(1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived.load() < kThreads && !timed_out) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() > deadline) timed_out = true;
    }
  });
  EXPECT_FALSE(timed_out);
  for (const auto& count : by_worker) EXPECT_EQ(count.load(), 1);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// In a process of its own that has no memory for so many stacks.
TEST(ThreadPool, TellsHowManyThreadsCouldBeStarted) {
  const auto try_many = [] {
    const rlimit limit{rlim_t{256} << 20, rlim_t{256} << 20};  // bytes: some thirty stacks
    setrlimit(RLIMIT_AS, &limit);
    try {
      const ThreadPool pool(4000);
    } catch (const Error& e) {
      std::fprintf(stderr, "%s\n", e.what());
      std::_Exit(e.code() == ErrorCode::kBudget ? 3 : 4);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(try_many(), testing::ExitedWithCode(3), "only [0-9]+ of 4000 threads");
}
#endif

TEST(ThreadPool, DestructionWhileIdleSpinningOrNeverUsed) {
  for (int threads : {1, 2, 8}) {
    { ThreadPool never_used(threads); }
    {
      ThreadPool spinning(threads);
      spinning.Run(10, [](int64_t, int) {});
    }
    {
      ThreadPool asleep(threads);
      asleep.Run(10, [](int64_t, int) {});
      std::this_thread::sleep_for(kUntilAsleep);
    }
  }
}

TEST(ThreadPool, OneCallerAfterAnother) {
  ThreadPool pool(3);
  int64_t total = 0;
  for (int caller = 0; caller < 20; ++caller) {
    std::thread([&] {
      std::atomic<int64_t> sum{0};
      pool.Run(100, [&](int64_t i, int) { sum.fetch_add(i); });
      total += sum.load();
    }).join();
  }
  EXPECT_EQ(total, 20 * 4950);
}

}  // namespace
}  // namespace hillstar
