#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "hillstar/error.h"

namespace hillstar {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw Error(ErrorCode::kBadRequest, "a stop string is empty");
  }
  std::sort(stops_.begin(), stops_.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

std::string StopStrings::Push(std::string_view text) {
  if (matched_) return "";
  if (stops_.empty()) return std::string(text);
  std::string shown;
  for (const char c : text) {
    held_ += c;
    for (const std::string& stop : stops_) {
      if (!held_.ends_with(stop)) continue;
      matched_ = true;
      match_ = stop;
      shown += held_.substr(0, held_.size() - stop.size());
      held_.clear();
      return shown;
    }
    const size_t open = OpenLength();
    shown += held_.substr(0, held_.size() - open);
    held_.erase(0, held_.size() - open);
  }
  return shown;
}

std::string StopStrings::Finish() { return std::exchange(held_, {}); }

size_t StopStrings::OpenLength() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    size_t length = std::min(stop.size() - 1, held_.size());
    while (length > longest && !held_.ends_with(std::string_view(stop).substr(0, length))) --length;
    longest = std::max(longest, length);
  }
  return longest;
}

}  // namespace hillstar
