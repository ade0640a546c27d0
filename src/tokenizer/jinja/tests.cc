// What stands after `is`.
#include <fmt/format.h>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/text.h"

namespace hillstar::jinja {
namespace {

// A test without arguments.
template <bool (*Holds)(const Value&)>
Value Simple(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "a test", {});
  return Holds(input);
}

template <CompareOp kOp>
Value Compares(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  return Compare(runtime, kOp, input, arguments.Bind(runtime, "a test", {"other"})[0]);
}

bool IsDefined(const Value& value) { return !value.IsUndefined(); }
bool IsUndefined(const Value& value) { return value.IsUndefined(); }
bool IsNone(const Value& value) { return value.IsNone(); }
bool IsString(const Value& value) { return value.text() != nullptr; }
bool IsBoolean(const Value& value) { return value.As<bool>() != nullptr; }
bool IsTrue(const Value& value) { return IsBoolean(value) && *value.As<bool>(); }
bool IsFalse(const Value& value) { return IsBoolean(value) && !*value.As<bool>(); }
bool IsFloat(const Value& value) { return value.As<double>() != nullptr; }
bool IsInteger(const Value& value) {
  return value.As<int64_t>() != nullptr || value.As<BigInteger>() != nullptr;
}
bool IsNumber(const Value& value) { return ToNumber(value).has_value(); }
bool IsMapping(const Value& value) {
  return value.dict() != nullptr && !value.dict()->is_namespace;
}
bool IsIterable(const Value& value) {
  return value.text() != nullptr || value.list() != nullptr || IsMapping(value) ||
         value.IsUndefined() || value.loop() != nullptr;
}
bool IsSequence(const Value& value) { return IsIterable(value) && value.loop() == nullptr; }
// Python's undefined value can be called, to fail only then.
bool IsCallable(const Value& value) { return value.callable() != nullptr || value.IsUndefined(); }

int64_t Whole(const Runtime& runtime, const Value& value) {
  const auto whole = ToInteger(value);
  if (!whole) runtime.Fail(fmt::format("a test of a {} as a whole number", value.TypeName()));
  return *whole;
}

Value Odd(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "odd", {});
  return Whole(runtime, input) % 2 != 0;
}

Value Even(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "even", {});
  return Whole(runtime, input) % 2 == 0;
}

Value DivisibleBy(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  const Value divisor = arguments.Bind(runtime, "divisibleby", {"num"})[0];
  const Value rest = Combine(runtime, BinaryOp::kModulo, input, divisor);
  return !rest.Truth();
}

// Whether the text has letters and all of them are of one case.
Value HasCase(Runtime& runtime, const Value& input, LetterCase letter_case) {
  const MarkedText text = ToText(runtime, input);
  const LetterCase other =
      letter_case == LetterCase::kUpper ? LetterCase::kLower : LetterCase::kUpper;
  return ChangeCase(text, letter_case).text() == text.text() &&
         ChangeCase(text, other).text() != text.text();
}

Value IsUpper(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "upper", {});
  return HasCase(runtime, input, LetterCase::kUpper);
}

Value IsLower(Runtime& runtime, const Value& input, const CallArguments& arguments) {
  arguments.Bind(runtime, "lower", {});
  return HasCase(runtime, input, LetterCase::kLower);
}

constexpr Builtin kTests[] = {{"defined", Simple<IsDefined>},
                              {"undefined", Simple<IsUndefined>},
                              {"none", Simple<IsNone>},
                              {"string", Simple<IsString>},
                              {"boolean", Simple<IsBoolean>},
                              {"true", Simple<IsTrue>},
                              {"false", Simple<IsFalse>},
                              {"integer", Simple<IsInteger>},
                              {"float", Simple<IsFloat>},
                              {"number", Simple<IsNumber>},
                              {"mapping", Simple<IsMapping>},
                              {"iterable", Simple<IsIterable>},
                              {"sequence", Simple<IsSequence>},
                              {"callable", Simple<IsCallable>},
                              {"odd", Odd},
                              {"even", Even},
                              {"divisibleby", DivisibleBy},
                              {"upper", IsUpper},
                              {"lower", IsLower},
                              {"in", Compares<CompareOp::kIn>},
                              {"eq", Compares<CompareOp::kEqual>},
                              {"equalto", Compares<CompareOp::kEqual>},
                              {"==", Compares<CompareOp::kEqual>},
                              {"ne", Compares<CompareOp::kNotEqual>},
                              {"!=", Compares<CompareOp::kNotEqual>},
                              {"lt", Compares<CompareOp::kLess>},
                              {"lessthan", Compares<CompareOp::kLess>},
                              {"<", Compares<CompareOp::kLess>},
                              {"le", Compares<CompareOp::kLessEqual>},
                              {"<=", Compares<CompareOp::kLessEqual>},
                              {"gt", Compares<CompareOp::kGreater>},
                              {"greaterthan", Compares<CompareOp::kGreater>},
                              {">", Compares<CompareOp::kGreater>},
                              {"ge", Compares<CompareOp::kGreaterEqual>},
                              {">=", Compares<CompareOp::kGreaterEqual>}};

}  // namespace

const Builtin* FindTest(std::string_view name) {
  for (const Builtin& test : kTests) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

}  // namespace hillstar::jinja
