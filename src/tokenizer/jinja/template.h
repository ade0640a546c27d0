// A chat template: the part of Jinja that the GLM family's templates use, as Hugging Face renders
// it. Immutable after parsing: any number of threads may render at once.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/runtime.h"
#include "tokenizer/jinja/value.h"
#include "tokenizer/marked_text.h"

namespace hillstar::jinja {

class Template {
 public:
  // Errors: kUnsupported naming line and construct.
  explicit Template(std::string_view source);
  ~Template();

  using Variables = std::vector<std::pair<std::string, Value>>;
  // Renders with the variables, whose containers may be of runtime->heap. Text keeps its marks.
  // Errors: kBadRequest where the template raises one or a value does not fit an operation;
  // kUnsupported where it needs too many steps or nests too deeply.
  MarkedText Render(const Variables& variables, Runtime* runtime) const;

 private:
  struct Syntax;
  std::unique_ptr<const Syntax> syntax_;
};

}  // namespace hillstar::jinja
