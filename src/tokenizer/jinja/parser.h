// Reads a chat template. Pure; any thread may call.
#pragma once

#include <string_view>

#include "tokenizer/jinja/syntax.h"

namespace hillstar::jinja {

// Errors: kUnsupported naming line and construct.
Body ParseTemplate(std::string_view source);

}  // namespace hillstar::jinja
