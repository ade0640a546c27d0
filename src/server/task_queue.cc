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

void TaskQueue::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_task_.wait(lock, [&] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace hillstar
