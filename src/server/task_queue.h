// Runs tasks in order of arrival on threads of its own: preparing requests and delivering answers
// away from the threads that do network input and output and from the one that computes.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hillstar {

class TaskQueue {
 public:
  explicit TaskQueue(int num_threads);
  // Runs what was posted, then ends the threads.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Any thread. The task may not throw.
  void Post(std::function<void()> task);
  // Until all that was posted has run.
  void WaitUntilDone();

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable has_task_, is_done_;
  std::deque<std::function<void()>> tasks_;
  int num_running_ = 0;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hillstar
