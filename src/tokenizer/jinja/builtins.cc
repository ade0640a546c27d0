#include "tokenizer/jinja/builtins.h"

#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/text.h"

namespace hillstar::jinja {
namespace {

Value Range(Runtime& runtime, const Value&, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "range", {"start", "stop", "step"});
  int64_t numbers[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (given[i].IsUndefined()) continue;
    const auto number = ToInteger(given[i]);
    if (!number) runtime.Fail("range() of what is no whole number");
    numbers[i] = *number;
  }
  if (given[1].IsUndefined()) std::swap(numbers[0], numbers[1]);
  const auto [start, stop, step] = numbers;
  if (step == 0) runtime.Fail("range() with step 0");
  List* list = runtime.heap.NewList();
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    runtime.Spend(1);
    list->items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list;
}

Dict* NamedAsDict(Runtime& runtime, std::string_view function, const CallArguments& arguments) {
  if (!arguments.positional.empty()) {
    runtime.Fail(fmt::format("{}() takes named arguments only", function));
  }
  Dict* dict = runtime.heap.NewDict();
  for (const auto& [name, value] : arguments.named) {
    runtime.Spend(1);
    dict->Set(Value::Plain(name), value);
  }
  return dict;
}

Value Namespace(Runtime& runtime, const Value&, const CallArguments& arguments) {
  Dict* space = NamedAsDict(runtime, "namespace", arguments);
  space->is_namespace = true;
  return space;
}

Value MakeDict(Runtime& runtime, const Value&, const CallArguments& arguments) {
  return NamedAsDict(runtime, "dict", arguments);
}

Value RaiseException(Runtime& runtime, const Value&, const CallArguments& arguments) {
  const std::vector<Value> given = arguments.Bind(runtime, "raise_exception", {"message"});
  runtime.Fail("it refuses the request: " + ToText(runtime, given[0]).text());
}

constexpr Builtin kFunctions[] = {{"range", Range},
                                  {"namespace", Namespace},
                                  {"dict", MakeDict},
                                  {"raise_exception", RaiseException}};

}  // namespace

std::vector<Value> CallArguments::Bind(const Runtime& runtime, std::string_view function,
                                       std::initializer_list<std::string_view> names) const {
  if (positional.size() > names.size()) {
    runtime.Fail(fmt::format("{} has {} arguments; it takes at most {}", function,
                             positional.size(), names.size()));
  }
  std::vector<Value> values(names.size());
  std::copy(positional.begin(), positional.end(), values.begin());
  for (const auto& [name, value] : named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      runtime.Fail(fmt::format("{} has no argument '{}'", function, name));
    }
    values[static_cast<size_t>(found - names.begin())] = value;
  }
  return values;
}

const Builtin* FindFunction(std::string_view name) {
  for (const Builtin& function : kFunctions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

}  // namespace hillstar::jinja
