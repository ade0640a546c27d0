// A saved conversation of the predecessor as this program's rows. Free functions, any thread.
#pragma once

#include <cstdint>
#include <span>

#include "kv/colibri_kv.h"
#include "kv/kv_shape.h"

namespace hillstar {

// What a file for a model with these rows has to say. Of its layers the first `num_layers` are no
// MTP layers, whose rows the predecessor does not save. `vocab`: the model's vocabulary.
ColibriKvShape ColibriShapeOf(const KvShape& shape, int64_t num_layers, int64_t vocab);

// Writes one token's rows into its place, 0..63, of a page's latents and index keys of all layers,
// in the format of `shape`. Codes of version 2 go into an fp8 row as they are; rows of MTP layers
// stay as they are: only MtpArgmax reads them, of a sequence that cannot be restored.
// REQUIRES: a record of ColibriShapeOf(shape, ...) whose values are finite.
void StoreColibriRecord(const KvShape& shape, const ColibriKvRecord& record, int64_t place,
                        std::span<uint8_t> latents, std::span<uint8_t> index_keys);

}  // namespace hillstar
