// What one rendering may use up, and where it is in the template. Not thread-safe: one per
// rendering.
#pragma once

#include <cstdint>
#include <string>

#include "tokenizer/jinja/value.h"

namespace hillstar::jinja {

class Runtime {
 public:
  // Takes `count` steps (an expression, a character of a long text's 64, an item). Errors:
  // kUnsupported when the template used them up.
  void Spend(size_t count);
  void SpendText(size_t bytes) { Spend(1 + bytes / kBytesPerStep); }
  // Throws Error kBadRequest naming the line that is being rendered.
  [[noreturn]] void Fail(const std::string& what) const;

  Heap heap;
  int line = 1;
  // Evaluations that are on the stack.
  int depth = 0;

 private:
  static constexpr size_t kBytesPerStep = 64;
  // A conversation of a thousand messages takes some hundred thousand.
  static constexpr size_t kMaxSteps = 5'000'000;
  size_t steps_left_ = kMaxSteps;
};

}  // namespace hillstar::jinja
