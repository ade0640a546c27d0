// The filters, tests, methods and functions that templates call by name, as Jinja and Python define
// them. Stateless: what they use up goes to the Runtime that is passed.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/runtime.h"
#include "tokenizer/jinja/value.h"

namespace hillstar::jinja {

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  // The values in the order of `names`; undefined where one is not given. Errors: kBadRequest for
  // too many or unknown arguments.
  std::vector<Value> Bind(const Runtime& runtime, std::string_view function,
                          std::initializer_list<std::string_view> names) const;
};

struct Builtin {
  std::string_view name;
  // `input` is what stands before the | or the dot; undefined for functions.
  Value (*run)(Runtime& runtime, const Value& input, const CallArguments& arguments);
};

// Null where there is none of the name.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindFunction(std::string_view name);
// A method of `object`'s type.
const Builtin* FindMethod(const Value& object, std::string_view name);

}  // namespace hillstar::jinja
