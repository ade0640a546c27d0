#include "server/response_store.h"

#include <fmt/format.h>

#include <random>

namespace hillstar {

ResponseStore::ResponseStore(ResponseLimits limits)
    : limits_(limits), num_bytes_(std::make_shared<std::atomic<size_t>>(0)) {}

std::string ResponseStore::NewId() {
  std::random_device random;
  return fmt::format("resp_{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

void ResponseStore::Add(const std::string& id, Turns earlier, ResponseTurn turn) {
  const size_t bytes = turn.input_items.size() + turn.response.size();
  if (bytes > limits_.bytes) return;
  const auto forget = [count = num_bytes_, bytes](const ResponseTurn* gone) {
    *count -= bytes;
    delete gone;
  };
  *num_bytes_ += bytes;
  earlier.push_back(std::shared_ptr<const ResponseTurn>(new ResponseTurn(std::move(turn)), forget));
  const std::lock_guard lock(mutex_);
  if (kept_.insert_or_assign(id, std::move(earlier)).second) ids_.push_back(id);
  MakeRoom();
}

void ResponseStore::MakeRoom() {
  while (kept_.size() > limits_.responses || (*num_bytes_ > limits_.bytes && !kept_.empty())) {
    kept_.erase(ids_.front());
    ids_.pop_front();
  }
  // Ids of removed responses must not pile up behind one that stays.
  if (ids_.size() > 2 * kept_.size() + 16) {
    std::erase_if(ids_, [&](const std::string& id) { return !kept_.contains(id); });
  }
}

ResponseStore::Turns ResponseStore::Find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = kept_.find(id);
  return it == kept_.end() ? Turns() : it->second;
}

bool ResponseStore::Remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return kept_.erase(id) > 0;
}

size_t ResponseStore::num_responses() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

}  // namespace hillstar
