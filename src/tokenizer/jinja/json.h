// JSON <-> template values, written as Python's json.dumps writes it (which Hugging Face's tojson
// calls): ", " and ": " between, keys in their order, floats as Python prints them. Pure; any
// thread may call with a Heap of its own.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja/value.h"

namespace hillstar::jinja {

// Nothing if `text` is no JSON or nests deeper than kMaxJsonDepth. All strings are marked.
std::optional<Value> ParseJson(std::string_view text, Heap* heap);

inline constexpr int kMaxJsonDepth = 200;

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<int64_t> indent;  // spaces per level; nothing: one line
  bool sort_keys = false;
  std::string item_separator = ", ";  // with an indent "," and a line break
  std::string key_separator = ": ";
};

// Marked as a whole if any text in `value` is. Errors: kBadRequest for what JSON cannot hold
// (undefined, functions) and for deeper nesting than kMaxJsonDepth.
MarkedText WriteJson(const Value& value, const JsonStyle& style);

// As Python's repr: 1.0, 1e+16, 1e-05, inf.
std::string FormatFloat(double value);

}  // namespace hillstar::jinja
