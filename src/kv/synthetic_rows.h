// Random rows in place of computed ones: for measuring long contexts.
#pragma once

#include <cstdint>
#include <span>

#include "kv/kv_shape.h"

namespace hillstar {

// Fills one page of all layers with random rows whose scales are those of values of about 1.
// Deterministic.
void FillSyntheticPage(const KvShape& shape, uint64_t seed, std::span<uint8_t> latents,
                       std::span<uint8_t> index_keys);

}  // namespace hillstar
