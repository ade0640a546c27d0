// What templates call on texts, mappings and lists.
#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/text.h"

namespace hillstar::jinja {
namespace {

// The argument as text; `fallback` where it is not given or none.
std::string TextOr(const Runtime& runtime, const Value& value, std::string_view fallback) {
  if (value.IsUndefined() || value.IsNone()) return std::string(fallback);
  if (value.text() == nullptr) {
    runtime.Fail(fmt::format("a {} where a text belongs", value.TypeName()));
  }
  return value.text()->text();
}

int64_t WholeOr(const Runtime& runtime, const Value& value, int64_t fallback) {
  if (value.IsUndefined()) return fallback;
  const auto whole = ToInteger(value);
  if (!whole) runtime.Fail(fmt::format("a {} where a whole number belongs", value.TypeName()));
  return *whole;
}

template <bool kLeft, bool kRight>
Value StripMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::string set =
      TextOr(runtime, arguments.Bind(runtime, "strip", {"chars"})[0], std::string_view());
  runtime.SpendText(input.text()->size());
  const TextRange range = StripRange(input.text()->text(), set, kLeft, kRight);
  return input.text()->Slice(range.begin, range.end);
}

template <bool kFromRight>
Value SplitMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "split", {"sep", "maxsplit"});
  const std::string separator = TextOr(runtime, given[0], std::string_view());
  if (given[0].text() != nullptr && separator.empty()) runtime.Fail("split() at an empty text");
  const int64_t max_splits = WholeOr(runtime, given[1], -1);
  runtime.SpendText(input.text()->size());
  List* list = runtime.heap.NewList();
  for (MarkedText& part : Split(*input.text(), separator, max_splits, kFromRight)) {
    runtime.Spend(1);
    list->items.emplace_back(std::move(part));
  }
  return list;
}

Value SplitLinesMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "splitlines", {});
  runtime.SpendText(input.text()->size());
  List* list = runtime.heap.NewList();
  for (MarkedText& line : SplitLines(*input.text())) {
    runtime.Spend(1);
    list->items.emplace_back(std::move(line));
  }
  return list;
}

template <bool kAtStart>
bool Matches(std::string_view text, std::string_view affix) {
  return kAtStart ? text.starts_with(affix) : text.ends_with(affix);
}

// A tuple asks for any of several.
template <bool kAtStart>
Value AffixMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const Value affix = arguments.Bind(runtime, kAtStart ? "startswith" : "endswith", {"affix"})[0];
  const std::string& text = input.text()->text();
  if (affix.text() != nullptr) return Matches<kAtStart>(text, affix.text()->text());
  if (affix.list() == nullptr) runtime.Fail("startswith() or endswith() of what is no text");
  bool any = false;
  for (const Value& item : affix.list()->items) {
    any = any || (item.text() != nullptr && Matches<kAtStart>(text, item.text()->text()));
  }
  return any;
}

template <bool kAtStart>
Value RemoveAffixMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::string affix =
      TextOr(runtime, arguments.Bind(runtime, "removeprefix", {"affix"})[0], std::string_view());
  const MarkedText& text = *input.text();
  if (!Matches<kAtStart>(text.text(), affix)) return input;
  return kAtStart ? text.Slice(affix.size(), text.size())
                  : text.Slice(0, text.size() - affix.size());
}

Value ReplaceMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "replace", {"old", "new", "count"});
  if (given[0].text() == nullptr || given[1].text() == nullptr) {
    runtime.Fail("replace() of what is no text");
  }
  const MarkedText& text = *input.text();
  runtime.SpendText(text.size() + (text.size() + 1) * given[1].text()->size());
  return Replace(text, given[0].text()->text(), *given[1].text(), WholeOr(runtime, given[2], -1));
}

template <LetterCase kCase>
Value CaseMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "upper() or lower()", {});
  runtime.SpendText(input.text()->size());
  return ChangeCase(*input.text(), kCase);
}

Value CapitalizeMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "capitalize", {});
  runtime.SpendText(input.text()->size());
  return Capitalize(*input.text());
}

// Positions count characters.
template <bool kLast>
Value FindMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::string part = TextOr(runtime, arguments.Bind(runtime, "find", {"sub"})[0], "");
  const std::string& text = input.text()->text();
  runtime.SpendText(text.size());
  const size_t found = kLast ? text.rfind(part) : text.find(part);
  if (found == std::string::npos) return int64_t{-1};
  return static_cast<int64_t>(CountCharacters(std::string_view(text).substr(0, found)));
}

Value CountMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const Value sought = arguments.Bind(runtime, "count", {"value"})[0];
  int64_t count = 0;
  if (const List* list = input.list()) {
    for (const Value& item : list->items) count += Equal(runtime, item, sought) ? 1 : 0;
    return count;
  }
  const std::string part = TextOr(runtime, sought, "");
  const std::string& text = input.text()->text();
  runtime.SpendText(text.size());
  if (part.empty()) return static_cast<int64_t>(CountCharacters(text)) + 1;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

Value JoinMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const Value items = arguments.Bind(runtime, "join", {"items"})[0];
  MarkedText out;
  bool first = true;
  for (const Value& item : ItemsOf(runtime, items)) {
    if (item.text() == nullptr) runtime.Fail("join() of what is no text");
    if (!first) out.Append(*input.text());
    first = false;
    runtime.SpendText(item.text()->size() + input.text()->size());
    out.Append(*item.text());
  }
  return out;
}

Value IsDigitMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "isdigit", {});
  const std::string& text = input.text()->text();
  runtime.SpendText(text.size());
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Value IsSpaceMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "isspace", {});
  runtime.SpendText(input.text()->size());
  return !input.text()->empty() && Strip(input.text()->text()).empty();
}

Value ItemsMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "items", {});
  List* list = runtime.heap.NewList();
  for (const Dict::Entry& entry : input.dict()->entries()) {
    runtime.Spend(1);
    List* pair = runtime.heap.NewList({entry.key, entry.value});
    pair->is_tuple = true;
    list->items.emplace_back(pair);
  }
  return list;
}

Value KeysMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "keys", {});
  return runtime.heap.NewList(ItemsOf(runtime, input));
}

Value ValuesMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "values", {});
  List* list = runtime.heap.NewList();
  for (const Dict::Entry& entry : input.dict()->entries()) {
    runtime.Spend(1);
    list->items.push_back(entry.value);
  }
  return list;
}

Value GetMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "get", {"key", "default"});
  const Value* found =
      given[0].text() == nullptr ? nullptr : input.dict()->Find(given[0].text()->text());
  if (found != nullptr) return *found;
  return given[1].IsUndefined() ? Value(None()) : given[1];
}

Value IndexMethod(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const Value sought = arguments.Bind(runtime, "index", {"value"})[0];
  const std::vector<Value>& items = input.list()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(runtime, items[i], sought)) return static_cast<int64_t>(i);
  }
  runtime.Fail("index() of what is not in the list");
}

// Hugging Face renders in a sandbox where nothing that exists can be changed.
Value Forbidden(Runtime& runtime, const Value& input, const CallArguments&) {
  runtime.Fail(
      fmt::format("a method that changes a {}, which templates may not", input.TypeName()));
}

constexpr Builtin kTextMethods[] = {{"strip", StripMethod<true, true>},
                                    {"lstrip", StripMethod<true, false>},
                                    {"rstrip", StripMethod<false, true>},
                                    {"split", SplitMethod<false>},
                                    {"rsplit", SplitMethod<true>},
                                    {"splitlines", SplitLinesMethod},
                                    {"startswith", AffixMethod<true>},
                                    {"endswith", AffixMethod<false>},
                                    {"removeprefix", RemoveAffixMethod<true>},
                                    {"removesuffix", RemoveAffixMethod<false>},
                                    {"replace", ReplaceMethod},
                                    {"upper", CaseMethod<LetterCase::kUpper>},
                                    {"lower", CaseMethod<LetterCase::kLower>},
                                    {"capitalize", CapitalizeMethod},
                                    {"find", FindMethod<false>},
                                    {"rfind", FindMethod<true>},
                                    {"count", CountMethod},
                                    {"join", JoinMethod},
                                    {"isdigit", IsDigitMethod},
                                    {"isspace", IsSpaceMethod}};
constexpr Builtin kDictMethods[] = {
    {"items", ItemsMethod}, {"keys", KeysMethod}, {"values", ValuesMethod},  {"get", GetMethod},
    {"update", Forbidden},  {"pop", Forbidden},   {"setdefault", Forbidden}, {"clear", Forbidden}};
constexpr Builtin kListMethods[] = {
    {"count", CountMethod}, {"index", IndexMethod}, {"append", Forbidden}, {"extend", Forbidden},
    {"insert", Forbidden},  {"pop", Forbidden},     {"remove", Forbidden}, {"clear", Forbidden},
    {"reverse", Forbidden}, {"sort", Forbidden}};

template <size_t kCount>
const Builtin* Find(const Builtin (&methods)[kCount], std::string_view name) {
  const auto found = std::find_if(std::begin(methods), std::end(methods),
                                  [name](const Builtin& method) { return method.name == name; });
  return found == std::end(methods) ? nullptr : &*found;
}

}  // namespace

const Builtin* FindMethod(const Value& object, std::string_view name) {
  if (object.text() != nullptr) return Find(kTextMethods, name);
  if (object.list() != nullptr) return Find(kListMethods, name);
  if (object.dict() != nullptr && !object.dict()->is_namespace) return Find(kDictMethods, name);
  return nullptr;
}

}  // namespace hillstar::jinja
