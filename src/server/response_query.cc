#include "server/response_query.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "formats/json_scan.h"
#include "server/api_error.h"

namespace hillstar {
namespace {

// Calls `take` with each name and value, as they came. Ids and numbers have nothing to decode.
void ForEachMember(std::string_view query,
                   const std::function<void(const std::string&, std::string_view)>& take) {
  while (!query.empty()) {
    const std::string_view member = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(member.size() + 1, query.size()));
    const size_t equals = std::min(member.find('='), member.size());
    if (!member.empty()) {
      take(std::string(member.substr(0, equals)),
           member.substr(std::min(equals + 1, member.size())));
    }
  }
}

// "include", also in the spellings of an array.
bool IsInclude(std::string_view name) { return name.starts_with("include"); }

[[noreturn]] void Refuse(const std::string& name, std::string_view value, const char* sentence) {
  throw BadRequest(fmt::format("{}={} {}", name, value, sentence), name);
}

size_t ReadLimit(std::string_view value) {
  constexpr size_t kMaxItems = 100;
  size_t limit = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), limit);
  const bool is_number = error == std::errc() && end == value.data() + value.size();
  if (!is_number || limit < 1 || limit > kMaxItems) {
    Refuse("limit", value, "has to be a number from 1 to 100");
  }
  return limit;
}

}  // namespace

void CheckResponseQuery(std::string_view query) {
  ForEachMember(query, [](const std::string& name, std::string_view value) {
    if (IsInclude(name)) return;
    if (name != "stream") Refuse(name, value, "is not known here");
    if (value != "false") Refuse(name, value, "is not supported: a kept response comes whole");
  });
}

OrderedJson ListInputItems(const ResponseTurn& turn, std::string_view query) {
  size_t limit = 20;
  bool is_ascending = false;
  std::string after;
  ForEachMember(query, [&](const std::string& name, std::string_view value) {
    if (name == "limit") {
      limit = ReadLimit(value);
    } else if (name == "order") {
      is_ascending = value == "asc";
      if (!is_ascending && value != "desc") Refuse(name, value, "has to be asc or desc");
    } else if (name == "after") {
      after = value;
    } else if (!IsInclude(name)) {
      Refuse(name, value, "is not known here");
    }
  });
  OrderedJson items = OrderedJson::parse(turn.input_items);
  if (!is_ascending) std::ranges::reverse(items);
  auto begin = items.begin();
  if (!after.empty()) {
    begin = std::ranges::find_if(items, [&](const auto& item) { return item.at("id") == after; });
    if (begin == items.end()) Refuse("after", after, "is no item of the input");
    ++begin;
  }
  const auto end = begin + std::min<ptrdiff_t>(ptrdiff_t(limit), items.end() - begin);
  OrderedJson data = OrderedJson::array();
  for (auto item = begin; item != end; ++item) data.push_back(*item);
  const bool is_empty = data.empty();
  OrderedJson list{{"object", "list"},
                   {"first_id", is_empty ? OrderedJson(nullptr) : data.front().at("id")},
                   {"last_id", is_empty ? OrderedJson(nullptr) : data.back().at("id")},
                   {"has_more", end != items.end()}};
  list["data"] = std::move(data);
  return list;
}

}  // namespace hillstar
