#include "tokenizer/jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/json.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/utf8.h"

namespace hillstar::jinja {
namespace {

// Of values inside values, when they are compared or written.
constexpr int kMaxValueDepth = 200;

void CheckDepth(const Runtime& runtime, int depth) {
  if (depth > kMaxValueDepth) runtime.Fail("a value nests too deeply");
}

// As Python's repr of a str, where characters beyond ASCII count as printable.
std::string Quote(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == quote || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out.push_back(c);
    }
  }
  out.push_back(quote);
  return out;
}

void Write(Runtime& runtime, const Value& value, bool quoted, int depth, MarkedText* out);

void WriteItems(Runtime& runtime, const List& list, int depth, MarkedText* out) {
  out->Append(list.is_tuple ? "(" : "[", false);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out->Append(", ", false);
    Write(runtime, list.items[i], true, depth + 1, out);
  }
  if (list.is_tuple && list.items.size() == 1) out->Append(",", false);
  out->Append(list.is_tuple ? ")" : "]", false);
}

void WriteEntries(Runtime& runtime, const Dict& dict, int depth, MarkedText* out) {
  out->Append("{", false);
  for (size_t i = 0; i < dict.entries().size(); ++i) {
    if (i > 0) out->Append(", ", false);
    Write(runtime, dict.entries()[i].key, true, depth + 1, out);
    out->Append(": ", false);
    Write(runtime, dict.entries()[i].value, true, depth + 1, out);
  }
  out->Append("}", false);
}

void Write(Runtime& runtime, const Value& value, bool quoted, int depth, MarkedText* out) {
  CheckDepth(runtime, depth);
  runtime.Spend(1);
  if (const MarkedText* text = value.text()) {
    runtime.SpendText(text->size());
    if (quoted) {
      out->Append(Quote(text->text()), text->AnyMarked());
    } else {
      out->Append(*text);
    }
  } else if (const List* list = value.list()) {
    WriteItems(runtime, *list, depth, out);
  } else if (const Dict* dict = value.dict()) {
    if (dict->is_namespace) runtime.Fail("a namespace cannot be written out");
    WriteEntries(runtime, *dict, depth, out);
  } else if (value.IsNone()) {
    out->Append("None", false);
  } else if (const auto* flag = value.As<bool>()) {
    out->Append(*flag ? "True" : "False", false);
  } else if (const auto* whole = value.As<int64_t>()) {
    out->Append(std::to_string(*whole), false);
  } else if (const auto* big = value.As<BigInteger>()) {
    out->Append(*big->digits, false);
  } else if (const auto* real = value.As<double>()) {
    out->Append(FormatFloat(*real), false);
  } else if (value.IsUndefined()) {
    if (quoted) out->Append("Undefined", false);
  } else {
    runtime.Fail(fmt::format("a {} cannot be written out", value.TypeName()));
  }
}

bool EqualAt(Runtime& runtime, const Value& a, const Value& b, int depth);

bool EqualItems(Runtime& runtime, const List& a, const List& b, int depth) {
  if (a.items.size() != b.items.size() || a.is_tuple != b.is_tuple) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!EqualAt(runtime, a.items[i], b.items[i], depth + 1)) return false;
  }
  return true;
}

bool EqualEntries(Runtime& runtime, const Dict& a, const Dict& b, int depth) {
  if (a.entries().size() != b.entries().size()) return false;
  for (const Dict::Entry& entry : a.entries()) {
    const Value* other = b.Find(entry.key.text()->text());
    if (other == nullptr || !EqualAt(runtime, entry.value, *other, depth + 1)) return false;
  }
  return true;
}

bool EqualAt(Runtime& runtime, const Value& a, const Value& b, int depth) {
  CheckDepth(runtime, depth);
  runtime.Spend(1);
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->text() == b.text()->text();
  const auto whole_a = ToInteger(a);
  const auto whole_b = ToInteger(b);
  if (whole_a && whole_b) return *whole_a == *whole_b;
  const auto number_a = ToNumber(a);
  const auto number_b = ToNumber(b);
  if (number_a && number_b) return *number_a == *number_b;
  if (a.list() != nullptr && b.list() != nullptr) {
    return a.list() == b.list() || EqualItems(runtime, *a.list(), *b.list(), depth);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict() == b.dict()) return true;
    if (a.dict()->is_namespace || b.dict()->is_namespace) return false;
    return EqualEntries(runtime, *a.dict(), *b.dict(), depth);
  }
  return (a.IsNone() && b.IsNone()) || (a.IsUndefined() && b.IsUndefined());
}

[[noreturn]] void FailPair(const Runtime& runtime, std::string_view what, const Value& a,
                           const Value& b) {
  runtime.Fail(fmt::format("{} of {} and {} is not defined", what, a.TypeName(), b.TypeName()));
}

Value AddWhole(const Runtime& runtime, BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOp::kAdd: overflow = __builtin_add_overflow(a, b, &result); break;
    case BinaryOp::kSubtract: overflow = __builtin_sub_overflow(a, b, &result); break;
    default: overflow = __builtin_mul_overflow(a, b, &result); break;
  }
  if (overflow) runtime.Fail("a number has more than 64 bits");
  return result;
}

// Rounded down, and the remainder with the divisor's sign.
Value DivideWhole(const Runtime& runtime, BinaryOp op, int64_t a, int64_t b) {
  if (b == 0) runtime.Fail("division by zero");
  if (a == INT64_MIN && b == -1) runtime.Fail("a number has more than 64 bits");
  const int64_t quotient = a / b;
  const int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  return op == BinaryOp::kFloor ? quotient - (adjust ? 1 : 0) : remainder + (adjust ? b : 0);
}

Value PowerWhole(const Runtime& runtime, int64_t a, int64_t b) {
  int64_t result = 1;
  for (int64_t i = 0; i < b; ++i) {
    if (__builtin_mul_overflow(result, a, &result)) runtime.Fail("a number has more than 64 bits");
    if (result == 0 || result == 1) break;
    if (result == -1) return (b - i - 1) % 2 == 0 ? int64_t{-1} : int64_t{1};
  }
  return result;
}

Value CombineReal(const Runtime& runtime, BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd: return a + b;
    case BinaryOp::kSubtract: return a - b;
    case BinaryOp::kMultiply: return a * b;
    case BinaryOp::kPower: return std::pow(a, b);
    default: break;
  }
  if (b == 0) runtime.Fail("division by zero");
  if (op == BinaryOp::kDivide) return a / b;
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return op == BinaryOp::kModulo ? remainder : std::floor((a - remainder) / b + 0.5);
}

Value Repeat(Runtime& runtime, const MarkedText& text, int64_t count) {
  MarkedText out;
  for (int64_t i = 0; i < count; ++i) {
    runtime.SpendText(text.size());
    out.Append(text);
  }
  return out;
}

// Python's slice.indices: where to start, and where to stop without reaching it.
struct Bounds {
  int64_t start, stop, step;
};

Bounds ResolveSlice(const Runtime& runtime, const Value& start, const Value& stop,
                    const Value& step, int64_t size) {
  const auto whole = [&](const Value& value, int64_t fallback) {
    if (value.IsNone() || value.IsUndefined()) return fallback;
    const auto number = ToInteger(value);
    if (!number) runtime.Fail(fmt::format("a slice by a {}", value.TypeName()));
    return *number;
  };
  const int64_t by = whole(step, 1);
  if (by == 0) runtime.Fail("a slice with step 0");
  const int64_t lowest = by > 0 ? 0 : -1;
  const int64_t highest = by > 0 ? size : size - 1;
  const auto clamp = [&](int64_t index) {
    if (index < 0) index = index < -size ? lowest : index + size;
    return std::clamp(index, lowest, highest);
  };
  const bool no_start = start.IsNone() || start.IsUndefined();
  const bool no_stop = stop.IsNone() || stop.IsUndefined();
  return {no_start ? (by > 0 ? lowest : highest) : clamp(whole(start, 0)),
          no_stop ? (by > 0 ? highest : lowest) : clamp(whole(stop, 0)), by};
}

template <typename Visit>
void ForSlice(const Bounds& bounds, const Visit& visit) {
  const auto [start, stop, step] = bounds;
  if (step > 0) {
    for (int64_t i = start; i < stop; i += std::min(step, stop - i)) visit(static_cast<size_t>(i));
  } else {
    // A step below -size ends after one item; clamped against overflow.
    for (int64_t i = start; i > stop; i += std::max(step, stop - i)) visit(static_cast<size_t>(i));
  }
}

Value LoopAttribute(const Loop& loop, std::string_view name) {
  const auto size = static_cast<int64_t>(loop.items->items.size());
  const auto item = [&](int64_t at) {
    return at >= 0 && at < size ? loop.items->items[static_cast<size_t>(at)] : Value();
  };
  if (name == "index") return loop.index0 + 1;
  if (name == "index0") return loop.index0;
  if (name == "revindex") return size - loop.index0;
  if (name == "revindex0") return size - loop.index0 - 1;
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return loop.index0 + 1 == size;
  if (name == "length") return size;
  if (name == "previtem") return item(loop.index0 - 1);
  if (name == "nextitem") return item(loop.index0 + 1);
  // Of recursive loops, which are not served.
  if (name == "depth") return int64_t{1};
  if (name == "depth0") return int64_t{0};
  return {};
}

}  // namespace

MarkedText ToText(Runtime& runtime, const Value& value) {
  MarkedText out;
  Write(runtime, value, false, 0, &out);
  return out;
}

std::optional<int64_t> ToInteger(const Value& value) {
  if (const auto* flag = value.As<bool>()) return *flag ? 1 : 0;
  if (const auto* whole = value.As<int64_t>()) return *whole;
  return {};
}

std::optional<double> ToNumber(const Value& value) {
  if (const auto* real = value.As<double>()) return *real;
  if (const auto* big = value.As<BigInteger>()) return std::strtod(big->digits->c_str(), nullptr);
  if (const auto whole = ToInteger(value)) return static_cast<double>(*whole);
  return {};
}

bool Equal(Runtime& runtime, const Value& a, const Value& b) { return EqualAt(runtime, a, b, 0); }

int Order(Runtime& runtime, const Value& a, const Value& b) {
  runtime.Spend(1);
  // The order of UTF-8 bytes is the order of characters.
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->text().compare(b.text()->text());
  const auto whole_a = ToInteger(a);
  const auto whole_b = ToInteger(b);
  if (whole_a && whole_b) return *whole_a < *whole_b ? -1 : *whole_a > *whole_b ? 1 : 0;
  const auto number_a = ToNumber(a);
  const auto number_b = ToNumber(b);
  if (number_a && number_b) return *number_a < *number_b ? -1 : *number_a > *number_b ? 1 : 0;
  FailPair(runtime, "the order", a, b);
}

bool IsIn(Runtime& runtime, const Value& a, const Value& b) {
  runtime.Spend(1);
  if (const MarkedText* text = b.text()) {
    if (a.text() == nullptr) FailPair(runtime, "membership", a, b);
    runtime.SpendText(text->size());
    return text->text().find(a.text()->text()) != std::string::npos;
  }
  if (const List* list = b.list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& item) { return Equal(runtime, a, item); });
  }
  if (b.dict() != nullptr && !b.dict()->is_namespace) {
    return a.text() != nullptr && b.dict()->Find(a.text()->text()) != nullptr;
  }
  if (b.IsUndefined()) return false;
  FailPair(runtime, "membership", a, b);
}

bool Compare(Runtime& runtime, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEqual: return Equal(runtime, a, b);
    case CompareOp::kNotEqual: return !Equal(runtime, a, b);
    case CompareOp::kLess: return Order(runtime, a, b) < 0;
    case CompareOp::kLessEqual: return Order(runtime, a, b) <= 0;
    case CompareOp::kGreater: return Order(runtime, a, b) > 0;
    case CompareOp::kGreaterEqual: return Order(runtime, a, b) >= 0;
    case CompareOp::kIn: return IsIn(runtime, a, b);
    case CompareOp::kNotIn: return !IsIn(runtime, a, b);
  }
  return false;
}

Value Combine(Runtime& runtime, BinaryOp op, const Value& a, const Value& b) {
  if (op == BinaryOp::kJoin || (op == BinaryOp::kAdd && a.text() && b.text())) {
    MarkedText out = ToText(runtime, a);
    out.Append(ToText(runtime, b));
    return out;
  }
  if (op == BinaryOp::kAdd && a.list() && b.list() && a.list()->is_tuple == b.list()->is_tuple) {
    runtime.Spend(a.list()->items.size() + b.list()->items.size());
    List* sum = runtime.heap.NewList(a.list()->items);
    sum->is_tuple = a.list()->is_tuple;
    sum->items.insert(sum->items.end(), b.list()->items.begin(), b.list()->items.end());
    return sum;
  }
  const auto whole_a = ToInteger(a);
  const auto whole_b = ToInteger(b);
  if (op == BinaryOp::kMultiply && a.text() && whole_b) return Repeat(runtime, *a.text(), *whole_b);
  if (op == BinaryOp::kMultiply && b.text() && whole_a) return Repeat(runtime, *b.text(), *whole_a);
  if (whole_a && whole_b && op != BinaryOp::kDivide) {
    if (op == BinaryOp::kFloor || op == BinaryOp::kModulo) {
      return DivideWhole(runtime, op, *whole_a, *whole_b);
    }
    if (op != BinaryOp::kPower) return AddWhole(runtime, op, *whole_a, *whole_b);
    if (*whole_b >= 0) return PowerWhole(runtime, *whole_a, *whole_b);
  }
  const auto number_a = ToNumber(a);
  const auto number_b = ToNumber(b);
  if (!number_a || !number_b) FailPair(runtime, "arithmetic", a, b);
  return CombineReal(runtime, op, *number_a, *number_b);
}

Value Negate(Runtime& runtime, const Value& value) {
  if (const auto whole = ToInteger(value)) {
    return AddWhole(runtime, BinaryOp::kSubtract, 0, *whole);
  }
  const auto number = ToNumber(value);
  if (!number) runtime.Fail(fmt::format("a minus before a {}", value.TypeName()));
  return -*number;
}

Value ItemOf(Runtime& runtime, const Value& object, const Value& index) {
  runtime.Spend(1);
  if (object.IsUndefined()) runtime.Fail("an item of what is undefined");
  if (const MarkedText* key = index.text()) return AttributeOf(runtime, object, key->text());
  auto at = ToInteger(index);
  if (!at) return {};
  if (const List* list = object.list()) {
    const auto size = static_cast<int64_t>(list->items.size());
    if (*at < 0) *at += size;
    return *at >= 0 && *at < size ? list->items[static_cast<size_t>(*at)] : Value();
  }
  if (const MarkedText* text = object.text()) {
    runtime.SpendText(text->size());
    const std::vector<size_t> offsets = CharacterOffsets(text->text());
    const auto size = static_cast<int64_t>(offsets.size()) - 1;
    if (*at < 0) *at += size;
    if (*at < 0 || *at >= size) return {};
    const auto character = static_cast<size_t>(*at);
    return text->Slice(offsets[character], offsets[character + 1]);
  }
  return {};
}

Value SliceOf(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
              const Value& step) {
  if (const List* list = object.list()) {
    runtime.Spend(list->items.size());
    const auto size = static_cast<int64_t>(list->items.size());
    List* out = runtime.heap.NewList();
    out->is_tuple = list->is_tuple;
    ForSlice(ResolveSlice(runtime, start, stop, step, size),
             [&](size_t i) { out->items.push_back(list->items[i]); });
    return out;
  }
  if (const MarkedText* text = object.text()) {
    runtime.SpendText(text->size());
    const std::vector<size_t> offsets = CharacterOffsets(text->text());
    const auto size = static_cast<int64_t>(offsets.size()) - 1;
    MarkedText out;
    ForSlice(ResolveSlice(runtime, start, stop, step, size),
             [&](size_t i) { out.Append(text->Slice(offsets[i], offsets[i + 1])); });
    return out;
  }
  runtime.Fail(fmt::format("a slice of a {}", object.TypeName()));
}

Value AttributeOf(Runtime& runtime, const Value& object, std::string_view name) {
  runtime.Spend(1);
  if (object.IsUndefined()) {
    runtime.Fail(fmt::format("'{}' of what is undefined", name));
  }
  if (const Dict* dict = object.dict()) {
    const Value* found = dict->Find(name);
    return found == nullptr ? Value() : *found;
  }
  if (const Loop* loop = object.loop()) return LoopAttribute(*loop, name);
  return {};
}

std::vector<Value> ItemsOf(Runtime& runtime, const Value& value) {
  if (const List* list = value.list()) {
    runtime.Spend(list->items.size());
    return list->items;
  }
  std::vector<Value> items;
  if (value.dict() != nullptr && !value.dict()->is_namespace) {
    runtime.Spend(value.dict()->entries().size());
    for (const Dict::Entry& entry : value.dict()->entries()) items.push_back(entry.key);
  } else if (const MarkedText* text = value.text()) {
    runtime.Spend(text->size());
    const std::vector<size_t> offsets = CharacterOffsets(text->text());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      items.emplace_back(text->Slice(offsets[i], offsets[i + 1]));
    }
  } else if (!value.IsUndefined()) {
    runtime.Fail(fmt::format("a loop over a {}", value.TypeName()));
  }
  return items;
}

}  // namespace hillstar::jinja
