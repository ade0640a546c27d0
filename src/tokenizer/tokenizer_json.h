// Reads a Hugging Face tokenizer.json into plain data, refusing by name what is not byte-level BPE.
// Pure; any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/split_pattern.h"

namespace hillstar {

struct AddedTokenSpec {
  std::string content;
  int32_t id = 0;
  bool special = false;
  // Matched only in what the tokens that are not normalized left over.
  bool normalized = false;
};

struct TokenizerSpec {
  std::vector<std::pair<std::string, int32_t>> vocab;  // entries in the byte alphabet, ids unique
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedTokenSpec> added_tokens;                 // contents unique, none empty
  std::vector<SplitPattern> patterns;                       // applied one after the other
  bool ignore_merges = false;
};

// Ids stay below this; GLM-5.2's vocabulary has 154,880.
inline constexpr int64_t kMaxTokenId = int64_t{1} << 24;

// Errors: kBadFile, kUnsupported, both naming the part.
TokenizerSpec ParseTokenizerJson(std::string_view text);

}  // namespace hillstar
