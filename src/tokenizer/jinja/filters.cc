// What stands after |.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "hillstar/error.h"
#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/json.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/text.h"

namespace hillstar::jinja {
namespace {

Value NewList(Runtime& runtime, std::vector<Value> items) {
  return runtime.heap.NewList(std::move(items));
}

bool TruthOr(const Value& value, bool fallback) {
  return value.IsUndefined() ? fallback : value.Truth();
}

// The path "a.b" of an attribute= argument; undefined on the way stays undefined.
Value AttributePath(Runtime& runtime, const Value& object, const Value& path) {
  if (const auto index = ToInteger(path)) return ItemOf(runtime, object, *index);
  if (path.text() == nullptr) runtime.Fail("an attribute that is no text");
  Value value = object;
  for (const MarkedText& name : Split(*path.text(), ".", -1, false)) {
    const bool is_index = !name.empty() && name.size() < 10 &&
                          name.text().find_first_not_of("0123456789") == std::string::npos;
    value = is_index ? ItemOf(runtime, value, int64_t{std::stoi(name.text())})
                     : AttributeOf(runtime, value, name.text());
  }
  return value;
}

Value ToJson(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given =
      arguments.Bind(runtime, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  if (!given[1].IsUndefined() && !given[1].IsNone()) {
    style.indent = ToInteger(given[1]);
    if (!style.indent) runtime.Fail("tojson with an indent that is no whole number");
    style.item_separator = std::string(1, ',');
  }
  style.ensure_ascii = TruthOr(given[0], false);
  if (const List* separators = given[2].list()) {
    if (separators->items.size() != 2 || !separators->items[0].text() ||
        !separators->items[1].text()) {
      runtime.Fail("tojson with separators that are not two texts");
    }
    style.item_separator = separators->items[0].text()->text();
    style.key_separator = separators->items[1].text()->text();
  }
  style.sort_keys = TruthOr(given[3], false);
  try {
    MarkedText out = WriteJson(input, style);
    runtime.SpendText(out.size());
    return out;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadRequest) throw;
    runtime.Fail(error.what());
  }
}

Value Length(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "length", {});
  if (const MarkedText* text = input.text()) {
    runtime.SpendText(text->size());
    return static_cast<int64_t>(CountCharacters(text->text()));
  }
  if (input.list() != nullptr) return static_cast<int64_t>(input.list()->items.size());
  if (input.dict() != nullptr) return static_cast<int64_t>(input.dict()->entries().size());
  if (input.IsUndefined()) return int64_t{0};
  runtime.Fail(fmt::format("the length of a {}", input.TypeName()));
}

Value Trim(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const Value set = arguments.Bind(runtime, "trim", {"chars"})[0];
  const MarkedText text = ToText(runtime, input);
  const std::string_view characters =
      set.text() == nullptr ? std::string_view() : std::string_view(set.text()->text());
  const TextRange range = StripRange(text.text(), characters, true, true);
  return text.Slice(range.begin, range.end);
}

Value Join(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "join", {"d", "attribute"});
  const MarkedText between = ToText(runtime, given[0]);
  MarkedText out;
  bool first = true;
  for (const Value& item : ItemsOf(runtime, input)) {
    if (!first) out.Append(between);
    first = false;
    const bool whole = given[1].IsUndefined() || given[1].IsNone();
    const MarkedText text = ToText(runtime, whole ? item : AttributePath(runtime, item, given[1]));
    runtime.SpendText(text.size() + between.size());
    out.Append(text);
  }
  return out;
}

Value Default(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "default", {"default_value", "boolean"});
  const bool missing = input.IsUndefined() || (TruthOr(given[1], false) && !input.Truth());
  if (!missing) return input;
  return given[0].IsUndefined() ? Value::Plain("") : given[0];
}

Value First(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "first", {});
  const std::vector<Value> items = ItemsOf(runtime, input);
  return items.empty() ? Value() : items.front();
}

Value Last(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "last", {});
  const std::vector<Value> items = ItemsOf(runtime, input);
  return items.empty() ? Value() : items.back();
}

Value String(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "string", {});
  return ToText(runtime, input);
}

Value Safe(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "safe", {});
  return input;
}

// A number at the start and the end of the text and nothing else but space.
template <typename Number>
std::optional<Number> ParseWhole(std::string_view text) {
  text = Strip(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  Number number{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return {};
  return number;
}

Value Int(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "int", {"default", "base"});
  if (!given[1].IsUndefined() && ToInteger(given[1]) != 10) runtime.Fail("int with another base");
  if (const auto whole = ToInteger(input)) return *whole;
  std::optional<double> real = ToNumber(input);
  if (const MarkedText* text = input.text()) {
    if (const auto whole = ParseWhole<int64_t>(text->text())) return *whole;
    real = ParseWhole<double>(text->text());
  }
  constexpr double kLimit = 9.2e18;
  if (real && std::fabs(*real) < kLimit) return static_cast<int64_t>(*real);
  return given[0].IsUndefined() ? Value(int64_t{0}) : given[0];
}

Value Float(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const Value fallback = arguments.Bind(runtime, "float", {"default"})[0];
  std::optional<double> real = ToNumber(input);
  if (input.text() != nullptr) real = ParseWhole<double>(input.text()->text());
  if (real) return *real;
  return fallback.IsUndefined() ? Value(0.0) : fallback;
}

Value Abs(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "abs", {});
  const auto number = ToNumber(input);
  if (!number) runtime.Fail(fmt::format("abs of a {}", input.TypeName()));
  return *number < 0 ? Negate(runtime, input) : input;
}

Value Round(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "round", {"precision", "method"});
  const auto number = ToNumber(input);
  const int64_t precision = ToInteger(given[0]).value_or(0);
  if (!number || precision < 0 || precision > 15) runtime.Fail("round of these values");
  const std::string method = given[1].text() ? given[1].text()->text() : "common";
  if (method == "common") {
    return std::strtod(fmt::format("{:.{}f}", *number, precision).c_str(), nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(*number * scale) / scale;
  if (method == "floor") return std::floor(*number * scale) / scale;
  runtime.Fail(fmt::format("round with the method '{}'", method));
}

template <LetterCase kCase>
Value Case(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "upper or lower", {});
  return ChangeCase(ToText(runtime, input), kCase);
}

Value CapitalizeFilter(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "capitalize", {});
  return Capitalize(ToText(runtime, input));
}

Value TitleFilter(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "title", {});
  return Title(ToText(runtime, input));
}

Value ToList(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "list", {});
  return NewList(runtime, ItemsOf(runtime, input));
}

Value Items(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "items", {});
  if (input.IsUndefined()) return NewList(runtime, {});
  const Builtin* items = FindMethod(input, "items");
  if (items == nullptr) runtime.Fail(fmt::format("items of a {}", input.TypeName()));
  return items->run(runtime, input, arguments);
}

Value Reverse(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "reverse", {});
  std::vector<Value> items = ItemsOf(runtime, input);
  std::reverse(items.begin(), items.end());
  if (input.text() == nullptr) return NewList(runtime, std::move(items));
  MarkedText out;
  for (const Value& item : items) out.Append(*item.text());
  return out;
}

Value ReplaceFilter(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  return FindMethod(Value::Plain(""), "replace")->run(runtime, ToText(runtime, input), arguments);
}

Value Indent(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "indent", {"width", "first", "blank"});
  MarkedText indentation(std::string(4, ' '), false);
  if (given[0].text() != nullptr) {
    indentation = *given[0].text();
  } else if (!given[0].IsUndefined()) {
    const auto width = ToInteger(given[0]);
    if (!width || *width > 1000) runtime.Fail("indent by this width");
    indentation =
        MarkedText(std::string(static_cast<size_t>(std::max<int64_t>(*width, 0)), ' '), false);
  }
  MarkedText text = ToText(runtime, input);
  // As Jinja does: so that a line break at the end keeps its empty line.
  text.Append("\n", false);
  MarkedText out;
  if (TruthOr(given[1], false)) out.Append(indentation);
  bool is_first = true;
  for (const MarkedText& line : SplitLines(text)) {
    runtime.SpendText(indentation.size() + line.size());
    if (!is_first) {
      out.Append("\n", false);
      if (!line.empty() || TruthOr(given[2], false)) out.Append(indentation);
    }
    is_first = false;
    out.Append(line);
  }
  return out;
}

// The test or filter that select, reject and map name; without a name the truth of the value.
CallArguments RestOf(const CallArguments& arguments, size_t num_taken) {
  CallArguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(num_taken),
                         arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

const Builtin* NamedBuiltin(const Runtime& runtime, const Value& name, std::string_view what,
                            const Builtin* (*find)(std::string_view)) {
  const Builtin* found = name.text() == nullptr ? nullptr : find(name.text()->text());
  if (found == nullptr) runtime.Fail(fmt::format("an unknown {} inside another filter", what));
  return found;
}

template <bool kKeep, bool kByAttribute>
Value Select(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const size_t num_own = kByAttribute ? 1 : 0;
  if (arguments.positional.size() < num_own) runtime.Fail("selectattr without an attribute");
  const bool has_test = arguments.positional.size() > num_own;
  const Builtin* test =
      has_test ? NamedBuiltin(runtime, arguments.positional[num_own], "test", FindTest) : nullptr;
  const CallArguments rest = RestOf(arguments, num_own + (has_test ? 1 : 0));
  std::vector<Value> kept;
  for (const Value& item : ItemsOf(runtime, input)) {
    const Value value = kByAttribute ? AttributePath(runtime, item, arguments.positional[0]) : item;
    const bool holds = test == nullptr ? value.Truth() : test->run(runtime, value, rest).Truth();
    if (holds == kKeep) kept.push_back(item);
  }
  return NewList(runtime, std::move(kept));
}

Value Map(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  std::vector<Value> mapped;
  if (arguments.positional.empty()) {
    const std::vector<Value> given = arguments.Bind(runtime, "map", {"attribute", "default"});
    for (const Value& item : ItemsOf(runtime, input)) {
      const Value value = AttributePath(runtime, item, given[0]);
      mapped.push_back(value.IsUndefined() ? given[1] : value);
    }
    return NewList(runtime, std::move(mapped));
  }
  const Builtin* filter = NamedBuiltin(runtime, arguments.positional[0], "filter", FindFilter);
  if (filter->run == Map) runtime.Fail("map inside map");
  const CallArguments rest = RestOf(arguments, 1);
  for (const Value& item : ItemsOf(runtime, input)) {
    mapped.push_back(filter->run(runtime, item, rest));
  }
  return NewList(runtime, std::move(mapped));
}

// What sort and its kin compare: the attribute, in lower case unless told otherwise.
Value SortKey(Runtime& runtime, const Value& item, const Value& attribute, bool case_sensitive) {
  const bool whole = attribute.IsUndefined() || attribute.IsNone();
  const Value key = whole ? item : AttributePath(runtime, item, attribute);
  if (key.text() == nullptr || case_sensitive) return key;
  return ChangeCase(*key.text(), LetterCase::kLower);
}

// Sorts by keys; equals keep their order. A merge sort, which stays in bounds even where NaN makes
// the order contradict itself.
std::vector<Value> SortBy(Runtime& runtime, const std::vector<Value>& items,
                          const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int sign = Order(runtime, keys[a], keys[b]);
    return reverse ? sign > 0 : sign < 0;
  });
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value Sort(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given =
      arguments.Bind(runtime, "sort", {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = ItemsOf(runtime, input);
  std::vector<Value> keys;
  for (const Value& item : items) {
    keys.push_back(SortKey(runtime, item, given[2], TruthOr(given[1], false)));
  }
  return NewList(runtime, SortBy(runtime, items, keys, TruthOr(given[0], false)));
}

Value DictSort(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given =
      arguments.Bind(runtime, "dictsort", {"case_sensitive", "by", "reverse"});
  const bool by_value = given[1].text() != nullptr && given[1].text()->text() == "value";
  const std::vector<Value> items = ItemsOf(runtime, Items(runtime, input, {}));
  std::vector<Value> keys;
  for (const Value& item : items) {
    keys.push_back(SortKey(runtime, item, int64_t{by_value ? 1 : 0}, TruthOr(given[0], false)));
  }
  return NewList(runtime, SortBy(runtime, items, keys, TruthOr(given[2], false)));
}

Value Unique(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given =
      arguments.Bind(runtime, "unique", {"case_sensitive", "attribute"});
  std::vector<Value> kept, keys;
  for (const Value& item : ItemsOf(runtime, input)) {
    Value key = SortKey(runtime, item, given[1], TruthOr(given[0], false));
    const bool seen = std::any_of(keys.begin(), keys.end(),
                                  [&](const Value& other) { return Equal(runtime, key, other); });
    if (seen) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return NewList(runtime, std::move(kept));
}

Value Sum(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "sum", {"attribute", "start"});
  Value total = given[1].IsUndefined() ? Value(int64_t{0}) : given[1];
  for (const Value& item : ItemsOf(runtime, input)) {
    total = Combine(runtime, BinaryOp::kAdd, total, SortKey(runtime, item, given[0], true));
  }
  return total;
}

template <CompareOp kBetter>
Value Extreme(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given =
      arguments.Bind(runtime, "min or max", {"case_sensitive", "attribute"});
  Value best, best_key;
  bool first = true;
  for (const Value& item : ItemsOf(runtime, input)) {
    Value key = SortKey(runtime, item, given[1], TruthOr(given[0], false));
    if (!first && !Compare(runtime, kBetter, key, best_key)) continue;
    first = false;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

constexpr Builtin kFilters[] = {{"tojson", ToJson},
                                {"length", Length},
                                {"count", Length},
                                {"trim", Trim},
                                {"join", Join},
                                {"default", Default},
                                {"d", Default},
                                {"first", First},
                                {"last", Last},
                                {"string", String},
                                {"safe", Safe},
                                {"int", Int},
                                {"float", Float},
                                {"abs", Abs},
                                {"round", Round},
                                {"upper", Case<LetterCase::kUpper>},
                                {"lower", Case<LetterCase::kLower>},
                                {"capitalize", CapitalizeFilter},
                                {"title", TitleFilter},
                                {"list", ToList},
                                {"items", Items},
                                {"reverse", Reverse},
                                {"replace", ReplaceFilter},
                                {"indent", Indent},
                                {"select", Select<true, false>},
                                {"reject", Select<false, false>},
                                {"selectattr", Select<true, true>},
                                {"rejectattr", Select<false, true>},
                                {"map", Map},
                                {"sort", Sort},
                                {"dictsort", DictSort},
                                {"unique", Unique},
                                {"sum", Sum},
                                {"min", Extreme<CompareOp::kLess>},
                                {"max", Extreme<CompareOp::kGreater>}};

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  for (const Builtin& filter : kFilters) {
    if (filter.name == name) return &filter;
  }
  return nullptr;
}

}  // namespace hillstar::jinja
