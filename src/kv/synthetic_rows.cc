#include "kv/synthetic_rows.h"

#include <algorithm>
#include <cstring>

namespace hillstar {
namespace {

constexpr float kScale = 1.0f / 127.0f;

// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
uint64_t Next(uint64_t* state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Odd bytes without bit 6: never -128 as a value of a plane, with an offset of 128 or without, and
// never the NaN of an e4m3 code.
void FillBytes(std::span<uint8_t> bytes, uint64_t* state) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t value = (Next(state) & 0xbfbfbfbfbfbfbfbf) | 0x0101010101010101;
    std::memcpy(bytes.data() + i, &value, std::min(sizeof value, bytes.size() - i));
  }
}

void PutScale(uint8_t* at) { std::memcpy(at, &kScale, sizeof kScale); }

}  // namespace

void FillSyntheticPage(const KvShape& shape, uint64_t seed, std::span<uint8_t> latents,
                       std::span<uint8_t> index_keys) {
  uint64_t state = seed;
  FillBytes(latents, &state);
  FillBytes(index_keys, &state);
  const KvRowLayout& row = shape.row;
  for (int64_t at = 0; at < int64_t(latents.size()); at += row.row_bytes()) {
    PutScale(latents.data() + at + row.latent_part().scale_at);
    PutScale(latents.data() + at + row.rope_part().scale_at);
  }
  const int64_t panel = shape.index.panel_bytes(), scales = shape.index.scales_at();
  for (int64_t at = 0; at < int64_t(index_keys.size()); at += panel) {
    for (int64_t i = 0; i < kIndexPanelTokens; ++i) {
      PutScale(index_keys.data() + at + scales + 4 * i);
    }
  }
}

}  // namespace hillstar
