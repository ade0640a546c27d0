#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "hillstar/error.h"
#include "tokenizer/added_token_matcher.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/byte_pair_encoder.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

// A word's symbols are indexed with 32 bits.
constexpr size_t kMaxTextBytes = size_t{1} << 30;

constexpr int32_t kNoId = -1;

[[noreturn]] void Bad(const std::string& what) {
  throw Error(ErrorCode::kBadFile, "tokenizer.json is damaged: " + what + ".");
}

using IdOfEntry = std::unordered_map<std::string_view, int32_t>;

IdOfEntry IndexVocab(const TokenizerSpec& spec) {
  IdOfEntry ids;
  ids.reserve(spec.vocab.size());
  for (const auto& [entry, id] : spec.vocab) ids.emplace(entry, id);
  return ids;
}

std::array<int32_t, 256> FindByteIds(const IdOfEntry& ids, const std::vector<bool>& is_added) {
  std::array<int32_t, 256> byte_ids{};
  for (int byte = 0; byte < 256; ++byte) {
    const std::string symbol = ByteSymbol(static_cast<uint8_t>(byte));
    const auto found = ids.find(symbol);
    if (found == ids.end()) {
      throw Error(ErrorCode::kUnsupported, "tokenizer.json has no entry \"" + symbol +
                                               "\" for byte " + std::to_string(byte) +
                                               ", so that not every text could be written.");
    }
    if (is_added[static_cast<size_t>(found->second)]) {
      throw Error(ErrorCode::kUnsupported,
                  "tokenizer.json has \"" + symbol + "\" both as a byte and as an added token.");
    }
    byte_ids[static_cast<size_t>(byte)] = found->second;
  }
  return byte_ids;
}

// Merges that would spell an added token are left out: where added tokens are parsed their text
// never gets here, and where they are not they must not appear.
MergeTable BuildMerges(const TokenizerSpec& spec, const IdOfEntry& ids,
                       const std::vector<bool>& is_added) {
  MergeTable table(spec.merges.size());
  const auto id_of = [&](const std::string& entry, size_t rank) {
    const auto found = ids.find(entry);
    if (found == ids.end()) {
      Bad("merge " + std::to_string(rank) + " names \"" + entry +
          "\", which is not in the vocabulary");
    }
    return found->second;
  };
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    const auto& [left, right] = spec.merges[i];
    if (left.empty() || right.empty()) Bad("merge " + std::to_string(i) + " has an empty part");
    const int32_t left_id = id_of(left, i);
    const int32_t right_id = id_of(right, i);
    const int32_t merged = id_of(left + right, i);
    if (is_added[static_cast<size_t>(merged)]) continue;
    table.Insert(left_id, right_id, {static_cast<uint32_t>(i), merged});
  }
  return table;
}

class ByteLevelBpe final : public Tokenizer {
 public:
  ByteLevelBpe(TokenizerSpec spec, std::vector<bool> is_added, const IdOfEntry& ids)
      : patterns_(std::move(spec.patterns)),
        encoder_(FindByteIds(ids, is_added), BuildMerges(spec, ids, is_added),
                 WholeWords(spec, is_added)) {
    bytes_.resize(is_added.size());
    is_special_.resize(is_added.size());
    for (const auto& [entry, id] : spec.vocab) {
      bytes_[static_cast<size_t>(id)] = BytesOfSymbols(entry).value_or(entry);
    }
    for (const AddedTokenSpec& token : spec.added_tokens) {
      bytes_[static_cast<size_t>(token.id)] = token.content;
      is_special_[static_cast<size_t>(token.id)] = token.special;
      (token.normalized ? late_matcher_ : matcher_).Add(token.content, token.id);
      added_ids_.emplace(token.content, token.id);
    }
  }

  std::vector<int32_t> Encode(std::string_view text, AddedTokens added) const override {
    if (added == AddedTokens::kParse) return EncodeMarked(text, {});
    CheckSize(text);
    std::vector<int32_t> ids;
    EncodeText(text, {0, text.size()}, &ids);
    return ids;
  }

  std::vector<int32_t> EncodeMarked(std::string_view text,
                                    std::span<const TextRange> literal) const override {
    CheckSize(text);
    std::vector<int32_t> ids;
    const auto plain = [&](TextRange range) { EncodeText(text, range, &ids); };
    const auto late = [&](TextRange range) {
      CutAtAddedTokens(late_matcher_, text, range, literal, &ids, plain);
    };
    CutAtAddedTokens(matcher_, text, {0, text.size()}, literal, &ids, late);
    return ids;
  }

  std::string Decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string out;
    for (const int32_t id : ids) {
      const std::string_view bytes = TokenBytes(id);
      if (!skip_special || !is_special_[static_cast<size_t>(id)]) out += bytes;
    }
    return out;
  }

  std::string_view TokenBytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) {
      throw Error(ErrorCode::kBadRequest, "Token id " + std::to_string(id) +
                                              " is outside the tokenizer's 0 to " +
                                              std::to_string(vocab_size() - 1) + ".");
    }
    return bytes_[static_cast<size_t>(id)];
  }

  bool IsSpecial(int32_t id) const override {
    return id >= 0 && id < vocab_size() && is_special_[static_cast<size_t>(id)];
  }

  std::optional<int32_t> AddedTokenId(std::string_view content) const override {
    const auto found = added_ids_.find(content);
    if (found == added_ids_.end()) return {};
    return found->second;
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_.size()); }

 private:
  static WordIds WholeWords(const TokenizerSpec& spec, const std::vector<bool>& is_added) {
    WordIds words;
    if (!spec.ignore_merges) return words;
    words.reserve(spec.vocab.size());
    for (const auto& [entry, id] : spec.vocab) {
      if (is_added[static_cast<size_t>(id)]) continue;
      if (auto bytes = BytesOfSymbols(entry)) words.emplace(std::move(*bytes), id);
    }
    return words;
  }

  static void CheckSize(std::string_view text) {
    if (text.size() > kMaxTextBytes) {
      throw Error(ErrorCode::kBadRequest, "A text of " + std::to_string(text.size()) +
                                              " bytes is longer than the tokenizer's limit of " +
                                              std::to_string(kMaxTextBytes) + ".");
    }
  }

  // Appends the ids of the added tokens in text[range] and calls `rest` on what is between.
  template <typename Rest>
  static void CutAtAddedTokens(const AddedTokenMatcher& matcher, std::string_view text,
                               TextRange range, std::span<const TextRange> literal,
                               std::vector<int32_t>* ids, const Rest& rest) {
    size_t done = range.begin;
    auto next_literal = std::partition_point(
        literal.begin(), literal.end(), [&](TextRange mark) { return mark.end <= range.begin; });
    for (size_t pos = range.begin; pos < range.end && !matcher.empty();) {
      while (next_literal != literal.end() && next_literal->end <= pos) ++next_literal;
      size_t limit = range.end;
      if (next_literal != literal.end()) {
        if (next_literal->begin <= pos && next_literal->size() > 0) {
          pos = next_literal->end;
          continue;
        }
        limit = std::min(limit, std::max(next_literal->begin, pos));
      }
      const AddedTokenMatcher::Match match = matcher.Longest(text, pos, limit);
      if (match.id == kNoId) {
        ++pos;
        continue;
      }
      if (done < pos) rest({done, pos});
      ids->push_back(match.id);
      done = pos += match.length;
    }
    if (done < range.end) rest({done, range.end});
  }

  // Text without added tokens: its valid stretches by words, other bytes one by one.
  void EncodeText(std::string_view text, TextRange range, std::vector<int32_t>* ids) const {
    while (range.begin < range.end) {
      const size_t valid = ValidUtf8Prefix(range.of(text));
      if (valid > 0) EncodeValid(text, {range.begin, range.begin + valid}, ids);
      range.begin += valid;
      if (range.begin < range.end) ids->push_back(encoder_.IdOfByte(text[range.begin++]));
    }
  }

  void EncodeValid(std::string_view text, TextRange range, std::vector<int32_t>* ids) const {
    std::vector<TextRange> words{range};
    for (const SplitPattern& pattern : patterns_) {
      std::vector<TextRange> finer;
      for (const TextRange word : words) pattern.Split(text, word, &finer);
      words = std::move(finer);
    }
    for (const TextRange word : words) encoder_.Encode(word.of(text), ids);
  }

  std::vector<SplitPattern> patterns_;
  BytePairEncoder encoder_;
  AddedTokenMatcher matcher_, late_matcher_;
  std::vector<std::string> bytes_;  // by id; empty where no token has the id
  std::vector<bool> is_special_;    // by id
  WordIds added_ids_;
};

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::FromJson(std::string_view tokenizer_json) {
  TokenizerSpec spec = ParseTokenizerJson(tokenizer_json);
  int32_t largest = 0;
  for (const auto& [entry, id] : spec.vocab) largest = std::max(largest, id);
  for (const AddedTokenSpec& token : spec.added_tokens) largest = std::max(largest, token.id);
  std::vector<bool> is_added(static_cast<size_t>(largest) + 1);
  for (const AddedTokenSpec& token : spec.added_tokens) {
    is_added[static_cast<size_t>(token.id)] = true;
  }
  const IdOfEntry ids = IndexVocab(spec);
  return std::make_shared<ByteLevelBpe>(std::move(spec), std::move(is_added), ids);
}

}  // namespace hillstar
