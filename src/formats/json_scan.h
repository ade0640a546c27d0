// JSON texts that nobody trusts (configurations, shard indices): parsed by nlohmann-json under
// limits, and every fault told as an Error. Pure functions; any thread may call them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>

namespace hillstar {

// Deeper than any file of this kind (a configuration nests 3 deep), shallow enough for any code
// that walks the document by recursion.
inline constexpr int kMaxJsonDepth = 64;

// What holds for every text here. Errors: kBadFile for one that is longer than `max_bytes` or has a
// NUL byte, which nlohmann takes for the end.
void CheckJsonText(std::string_view text, std::string_view what, size_t max_bytes);

// Parses `text`, which messages call `what` (e.g. "config.json").
// Errors: kBadFile, with the byte offset of a syntax error, for malformed JSON, a NUL byte, a
// number outside double's range, nesting deeper than kMaxJsonDepth, a key that stands twice in one
// object, and texts longer than `max_bytes`.
nlohmann::json ParseJson(std::string_view text, std::string_view what, size_t max_bytes);
// The same; objects keep the order of their members.
nlohmann::ordered_json ParseOrderedJson(std::string_view text, std::string_view what,
                                        size_t max_bytes);

// A value of ScanJsonObject.
using JsonScalar = std::variant<std::string, uint64_t>;

// Reads one object of names and values without building a document, so that 60,000 members cost
// little and no memory beyond what `on_member` keeps: the member `member` of the text's object, or
// that object itself if `member` is empty. Calls on_member(key, value) for each, which throws for a
// key that comes twice. False if there is no such object.
// Errors: as ParseJson's; kBadFile for a value that is neither a text nor a whole number >= 0.
bool ScanJsonObject(std::string_view text, std::string_view what, size_t max_bytes,
                    std::string_view member,
                    const std::function<void(const std::string& key, JsonScalar value)>& on_member);

// A name or value from a file, for messages: quoted, control bytes escaped, at most about 120
// bytes (the middle is left out).
std::string Quoted(std::string_view text);

}  // namespace hillstar
