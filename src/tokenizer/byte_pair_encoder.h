// Byte-pair encoding of one word: starts from its bytes and joins the pair of lowest rank (the
// leftmost of equals) until no pair has a rank. Immutable after construction: any thread may use
// it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hillstar {

// What a pair of ids becomes: open addressing, at most half full.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = 0;
  };

  explicit MergeTable(size_t num_merges);
  // A later rank for the same pair replaces the earlier one. REQUIRES: at most `num_merges` calls.
  void Insert(int32_t left, int32_t right, Merge merge);
  // Rank kNoRank where the pair does not merge.
  Merge Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  size_t SlotOf(uint64_t key) const;

  uint32_t shift_;
  std::vector<Slot> slots_;
};

struct WordHash {
  using is_transparent = void;
  size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
};
using WordIds = std::unordered_map<std::string, int32_t, WordHash, std::equal_to<>>;

class BytePairEncoder {
 public:
  // `whole_words`: words taken as one id without merging; empty where the model always merges.
  BytePairEncoder(const std::array<int32_t, 256>& byte_ids, MergeTable merges, WordIds whole_words);
  // Appends the ids of `word`. O(n log n) in its length. REQUIRES: fewer than 2^31 bytes.
  void Encode(std::string_view word, std::vector<int32_t>* out) const;
  int32_t IdOfByte(char byte) const { return byte_ids_[static_cast<uint8_t>(byte)]; }

 private:
  void EncodeShort(std::string_view word, std::vector<int32_t>* out) const;
  void EncodeLong(std::string_view word, std::vector<int32_t>* out) const;

  std::array<int32_t, 256> byte_ids_;
  MergeTable merges_;
  WordIds whole_words_;
};

}  // namespace hillstar
