// Responses that were answered with "store": each can be asked for again and gone on from. Kept in
// memory, bounded in number and bytes; the oldest go first. A response that others went on from
// takes memory as long as one of them is kept. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace hillstar {

// One request and what was answered, as JSON texts: they take a fraction of the memory of parsed
// values.
struct ResponseTurn {
  std::string input_items;  // an array
  std::string response;     // the response object
};

struct ResponseLimits {
  size_t responses = 4096;
  size_t bytes = size_t{64} << 20;  // of JSON: some 15 million tokens of English
};

class ResponseStore {
 public:
  // A conversation, from its first turn on.
  using Turns = std::vector<std::shared_ptr<const ResponseTurn>>;

  explicit ResponseStore(ResponseLimits limits = {});

  // "resp_" and 32 hexadecimal digits that nobody can guess: to know one is to read the response.
  static std::string NewId();

  // Keeps a turn that follows `earlier`. One that is larger than the limit is not kept.
  void Add(const std::string& id, Turns earlier, ResponseTurn turn);
  // The conversation up to the response; empty where it is not kept.
  Turns Find(const std::string& id) const;
  // Whether it was there.
  bool Remove(const std::string& id);

  size_t num_responses() const;
  // Of all turns that are kept, also of responses that have gone and that others follow.
  size_t num_bytes() const { return *num_bytes_; }

 private:
  void MakeRoom();

  const ResponseLimits limits_;
  // Turns may outlive the store.
  const std::shared_ptr<std::atomic<size_t>> num_bytes_;
  mutable std::mutex mutex_;  // for what follows
  std::map<std::string, Turns> kept_;
  std::deque<std::string> ids_;  // from the oldest on; some may be removed
};

}  // namespace hillstar
