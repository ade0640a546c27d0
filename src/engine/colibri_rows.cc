#include "engine/colibri_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "ops/kernels.h"

namespace hillstar {
namespace {

// colibri's scale is that of the codes' values, amax / 448; a row's is that of the integers' high
// plane, amax / 112 (numerics/e4m3.h).
constexpr float kColibriScale = 4.0f;

// Codes as they were saved, or none.
struct SavedCodes {
  const uint8_t* codes = nullptr;
  float scale = 0;
};

void StorePart(const KvRowPart& part, const float* values, const SavedCodes& saved, uint8_t* row) {
  if (part.format != PartFormat::kE4m3 || !saved.codes) {
    CHECK(StoreRowPart(ChooseKernels("reference"), part, values, row));
    return;
  }
  uint8_t* codes = row + part.at;
  std::fill_n(std::copy_n(saved.codes, part.num_values, codes), part.padded - part.num_values,
              uint8_t{0});
  const float scale = saved.scale * kColibriScale;
  std::memcpy(row + part.scale_at, &scale, sizeof scale);
}

}  // namespace

ColibriKvShape ColibriShapeOf(const KvShape& shape, int64_t num_layers, int64_t vocab) {
  CHECK(num_layers <= shape.num_layers);
  const auto begin = shape.has_index_keys.begin();
  ColibriKvShape colibri;
  colibri.num_layers = int32_t(num_layers);
  colibri.latent = int32_t(shape.row.latent);
  colibri.rope = int32_t(shape.row.rope);
  colibri.num_index_layers = int32_t(std::count(begin, begin + num_layers, true));
  colibri.index_head_dim = colibri.num_index_layers > 0 ? int32_t(shape.index.dim) : 0;
  colibri.vocab = int32_t(vocab);
  return colibri;
}

void StoreColibriRecord(const KvShape& shape, const ColibriKvRecord& record, int64_t place,
                        std::span<uint8_t> latents, std::span<uint8_t> index_keys) {
  const KvRowLayout& layout = shape.row;
  const int64_t num_layers = int64_t(record.latents.size()) / layout.latent;
  for (int64_t l = 0; l < num_layers; ++l) {
    uint8_t* row = latents.data() + l * layout.page_bytes() + place * layout.row_bytes();
    SavedCodes latent, rope;
    if (!record.latent_codes.empty()) {
      latent = {&record.latent_codes[size_t(l * layout.latent)], record.latent_scales[size_t(l)]};
      rope = {&record.rope_codes[size_t(l * layout.rope)], record.rope_scales[size_t(l)]};
    }
    StorePart(layout.latent_part(), &record.latents[size_t(l * layout.latent)], latent, row);
    StorePart(layout.rope_part(), &record.ropes[size_t(l * layout.rope)], rope, row);
  }
  const int64_t dim = shape.index.dim, padded = RoundUp(dim, 16);
  std::vector<int8_t> hi(static_cast<size_t>(padded)), lo(hi.size());
  const PageId only_page = 0;
  // MTP layers are the last, so the record's index layers are the first of the page's.
  const int64_t num_index_layers = int64_t(record.index_keys.size()) / std::max<int64_t>(dim, 1);
  for (int64_t i = 0; i < num_index_layers; ++i) {
    float scale = 0;
    CHECK(reference::QuantiseRow({&record.index_keys[size_t(i * dim)], dim, padded, hi.data(),
                                  shape.index.num_planes == 2 ? lo.data() : nullptr, &scale}));
    uint8_t* page = index_keys.data() + i * shape.index.page_bytes();
    StoreIndexKey(shape.index, {&only_page, &page, 0}, place, hi.data(), lo.data(), scale);
  }
}

}  // namespace hillstar
