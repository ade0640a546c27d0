// ParseOrderedJson. nlohmann's own parser would look through all members of an object before it
// adds one, which takes minutes for a million of them; this builder knows by a hash what is there.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "formats/json_scan.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;

class TreeEvents {
 public:
  explicit TreeEvents(std::string_view what) : what_(what) {}

  Json& tree() { return tree_; }

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(int64_t value) { return Add(value); }
  bool number_unsigned(uint64_t value) { return Add(value); }
  bool number_float(double value, const std::string&) { return Add(value); }
  bool string(std::string& value) { return Add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // not in JSON texts
  bool key(std::string& value) {
    if (!keys_.back().insert(value).second) {
      Fail(fmt::format("has the key {} twice in one object", Quoted(value)));
    }
    key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) { return Open(Json::object()); }
  bool start_array(std::size_t) { return Open(Json::array()); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    // 406: a number outside double's range.
    Fail(error.id == 406 ? fmt::format("is not valid JSON: {}", error.what())
                         : fmt::format("is not valid JSON: fault at byte {}", position));
  }

 private:
  [[noreturn]] void Fail(const std::string& sentence) const {
    throw Error(ErrorCode::kBadFile, fmt::format("{} {}.", what_, sentence));
  }
  // Members of the innermost container may move when it grows; those outside it do not.
  Json* Place(Json value) {
    if (open_.empty()) {
      tree_ = std::move(value);
      return &tree_;
    }
    Json& container = *open_.back();
    if (container.is_array()) {
      container.push_back(std::move(value));
      return &container.back();
    }
    auto& members =
        static_cast<std::vector<Json::object_t::value_type>&>(container.get_ref<Json::object_t&>());
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }
  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(Json empty) {
    if (open_.size() >= size_t(kMaxJsonDepth)) {
      Fail(fmt::format("nests deeper than {} levels", kMaxJsonDepth));
    }
    open_.push_back(Place(std::move(empty)));
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  std::string_view what_;
  Json tree_;
  std::vector<Json*> open_;  // containers, the innermost last
  std::vector<std::unordered_set<std::string>> keys_;
  std::string key_;
};

}  // namespace

nlohmann::ordered_json ParseOrderedJson(std::string_view text, std::string_view what,
                                        size_t max_bytes) {
  CheckJsonText(text, what, max_bytes);
  TreeEvents events(what);
  Json::sax_parse(text.begin(), text.end(), &events);
  return std::move(events.tree());
}

}  // namespace hillstar
