// What Jinja's operators do with values, as Python defines them. Stateless: what they use up goes
// to the Runtime that is passed. All throw Error kBadRequest for values that do not go together.
#pragma once

#include <optional>
#include <vector>

#include "tokenizer/jinja/runtime.h"
#include "tokenizer/jinja/syntax.h"
#include "tokenizer/jinja/value.h"

namespace hillstar::jinja {

// As str(value); what is undefined is empty.
MarkedText ToText(Runtime& runtime, const Value& value);

bool Equal(Runtime& runtime, const Value& a, const Value& b);
// Below 0, 0 or above, for numbers, texts and lists.
int Order(Runtime& runtime, const Value& a, const Value& b);
bool Compare(Runtime& runtime, CompareOp op, const Value& a, const Value& b);
// a in b.
bool IsIn(Runtime& runtime, const Value& a, const Value& b);

// All but kAnd and kOr, which need no second value.
Value Combine(Runtime& runtime, BinaryOp op, const Value& a, const Value& b);
Value Negate(Runtime& runtime, const Value& value);

// object[index] and object[start:stop:step]; undefined where there is no such item.
Value ItemOf(Runtime& runtime, const Value& object, const Value& index);
Value SliceOf(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
              const Value& step);
// object.name, where it is no method.
Value AttributeOf(Runtime& runtime, const Value& object, std::string_view name);

// What a loop over the value visits: items, keys or characters; nothing for undefined.
std::vector<Value> ItemsOf(Runtime& runtime, const Value& value);

// The value as a whole number (a boolean is 0 or 1).
std::optional<int64_t> ToInteger(const Value& value);
// Any number.
std::optional<double> ToNumber(const Value& value);

}  // namespace hillstar::jinja
