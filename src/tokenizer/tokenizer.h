// Text <-> ids by a Hugging Face tokenizer.json (byte-level BPE). Immutable after loading: any
// thread may use it at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text_range.h"

namespace hillstar {

// Whether text like "<|user|>" in the input becomes the added token or stays plain text.
enum class AddedTokens { kParse, kAsText };

class Tokenizer {
 public:
  // Errors: kBadFile (damaged), kUnsupported (naming the part that is not byte-level BPE).
  static std::shared_ptr<const Tokenizer> FromJson(std::string_view tokenizer_json);
  virtual ~Tokenizer() = default;

  // Any bytes are accepted; what is not UTF-8 goes byte by byte and decodes to the same bytes.
  virtual std::vector<int32_t> Encode(std::string_view text, AddedTokens added) const = 0;
  // As kParse, but an added token counts only where none of its bytes lies in a range of `literal`
  // (ascending, disjoint): text of others inside a text of ours.
  virtual std::vector<int32_t> EncodeMarked(std::string_view text,
                                            std::span<const TextRange> literal) const = 0;
  // The bytes of the ids, concatenated; special tokens are left out if `skip_special`.
  // The result may end inside a UTF-8 character. Errors: kBadRequest for an id out of range.
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special) const = 0;
  // Bytes of one token as Decode gives them.
  virtual std::string_view TokenBytes(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  // The id of an added token by its exact content.
  virtual std::optional<int32_t> AddedTokenId(std::string_view content) const = 0;
  virtual int64_t vocab_size() const = 0;  // largest id + 1
};

// Cuts a stream of bytes into whole UTF-8 characters: Push returns what is complete and keeps an
// unfinished tail; Finish gives the tail back as U+FFFD. Invalid bytes become U+FFFD at once.
class Utf8Stream {
 public:
  std::string Push(std::string_view bytes);
  std::string Finish();

 private:
  std::string tail_;
};

}  // namespace hillstar
