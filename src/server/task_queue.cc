#include "server/task_queue.h"

namespace hillstar {

TaskQueue::TaskQueue(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

TaskQueue::~TaskQueue() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  has_task_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void TaskQueue::Post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  has_task_.notify_one();
}

void TaskQueue::WaitUntilDone() {
  std::unique_lock lock(mutex_);
  is_done_.wait(lock, [&] { return tasks_.empty() && num_running_ == 0; });
}

void TaskQueue::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_task_.wait(lock, [&] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++num_running_;
    lock.unlock();
    task();
    task = nullptr;  // and what it holds
    lock.lock();
    if (--num_running_ == 0 && tasks_.empty()) is_done_.notify_all();
  }
}

}  // namespace hillstar
