#include "formats/json_scan.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hillstar/error.h"

namespace hillstar {
namespace {

constexpr size_t kQuotedEndBytes = 60;  // kept of each end of a long name

// Watches a parse: depth, and keys that stand twice in one object (nlohmann keeps the last one
// silently, other parsers the first).
class ParseWatch {
 public:
  explicit ParseWatch(std::string_view what) : what_(what) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= kMaxJsonDepth) {
        throw Error(ErrorCode::kBadFile,
                    fmt::format("{} nests deeper than {} levels.", what_, kMaxJsonDepth));
      }
      if (event == Event::object_start) keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        throw Error(ErrorCode::kBadFile,
                    fmt::format("{} has the key {} twice in one object.", what_, Quoted(key)));
      }
    }
    return true;
  }

 private:
  std::string_view what_;
  std::vector<std::unordered_set<std::string>> keys_;
};

// nlohmann's events of one text; see ScanJsonObject.
class MemberEvents {
 public:
  using OnMember = std::function<void(const std::string&, JsonScalar)>;
  MemberEvents(std::string_view what, std::string_view member, const OnMember& on_member)
      : what_(what), member_(member), on_member_(on_member) {}

  bool found() const { return found_; }

  bool null() { return Other(); }
  bool boolean(bool) { return Other(); }
  bool number_integer(int64_t) { return Other(); }
  bool number_float(double, const std::string&) { return Other(); }
  bool binary(nlohmann::json::binary_t&) { return Other(); }
  bool number_unsigned(uint64_t value) {
    if (inside_) on_member_(key_, value);
    return true;
  }
  bool string(std::string& value) {
    if (inside_) on_member_(key_, std::move(value));
    return true;
  }
  bool key(std::string& value) {
    if (inside_ || depth_ == 1) key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) {
    Other();
    const bool is_target =
        member_.empty() ? depth_ == 0 : depth_ == 1 && top_is_object_ && key_ == member_;
    if (depth_ == 0) top_is_object_ = true;
    if (is_target) inside_ = found_ = true;
    return Down();
  }
  bool start_array(std::size_t) {
    Other();
    return Down();
  }
  bool end_object() { return Up(); }
  bool end_array() { return Up(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} is not valid JSON: fault at byte {}.", what_, position));
  }

 private:
  bool Other() {
    if (!inside_) return true;
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} gives {} a value that is neither a text nor a whole number.", what_,
                            Quoted(key_)));
  }
  bool Down() {
    if (++depth_ <= kMaxJsonDepth) return true;
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} nests deeper than {} levels.", what_, kMaxJsonDepth));
  }
  bool Up() {
    --depth_;
    inside_ = false;
    return true;
  }

  std::string_view what_;
  std::string_view member_;
  const OnMember& on_member_;
  std::string key_;
  int depth_ = 0;
  bool top_is_object_ = false;
  bool inside_ = false;
  bool found_ = false;
};

}  // namespace

void CheckJsonText(std::string_view text, std::string_view what, size_t max_bytes) {
  if (text.size() > max_bytes) {
    throw Error(ErrorCode::kBadFile, fmt::format("{} is {} bytes long; at most {} are read.", what,
                                                 text.size(), max_bytes));
  }
  // nlohmann takes a NUL byte for the end of the text and would ignore what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorCode::kBadFile, fmt::format("{} has a NUL byte at offset {}.", what, nul));
  }
}

std::string Quoted(std::string_view text) {
  const auto append = [](std::string& out, std::string_view part) {
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f) {
        out += fmt::format("\\x{:02x}", byte);
      } else {
        out += c;
      }
    }
  };
  std::string out = "'";
  if (text.size() <= 2 * kQuotedEndBytes) {
    append(out, text);
    return out + "'";
  }
  append(out, text.substr(0, kQuotedEndBytes));
  out += "...";
  append(out, text.substr(text.size() - kQuotedEndBytes));
  return out + fmt::format("' ({} bytes long)", text.size());
}

bool ScanJsonObject(std::string_view text, std::string_view what, size_t max_bytes,
                    std::string_view member,
                    const std::function<void(const std::string&, JsonScalar)>& on_member) {
  CheckJsonText(text, what, max_bytes);
  MemberEvents events(what, member, on_member);
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  return events.found();
}

nlohmann::json ParseJson(std::string_view text, std::string_view what, size_t max_bytes) {
  CheckJsonText(text, what, max_bytes);
  ParseWatch watch(what);
  try {
    return nlohmann::json::parse(text.begin(), text.end(), std::ref(watch));
  } catch (const nlohmann::json::parse_error& e) {
    throw Error(ErrorCode::kBadFile,
                e.byte > text.size()
                    ? fmt::format("{} is not valid JSON: it ends too early, after {} bytes.", what,
                                  text.size())
                    : fmt::format("{} is not valid JSON: fault at byte {} of {}.", what, e.byte,
                                  text.size()));
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::kBadFile, fmt::format("{} is not valid JSON: {}.", what, e.what()));
  }
}

}  // namespace hillstar
