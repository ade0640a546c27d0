// Rows of the predecessor's conversations: codes are taken over as they are, floats are quantised
// as the engine quantises its own, and a conversation of the built-in model goes on from them.
#include "engine/colibri_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/sampler.h"
#include "hillstar/engine.h"
#include "kv/row_values.h"
#include "model/config.h"
#include "numerics/likelihood.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

KvShape SmallShape(KvFormat format) {
  KvShape shape;
  shape.row = {70, 4, format};
  shape.index = {16, NumIndexPlanes(format)};
  shape.num_layers = 2;
  shape.has_index_keys = {false, true};
  return shape;
}

TEST(ColibriRows, CodesOfVersionTwoGoIntoFp8RowsAsTheyAre) {
  const KvShape shape = SmallShape(KvFormat::kFp8);
  ColibriKvRecord record;
  for (int i = 0; i < 2 * 70; ++i) record.latent_codes.push_back(uint8_t(i * 3 % 126));
  for (int i = 0; i < 2 * 4; ++i) record.rope_codes.push_back(uint8_t(0x80 + i));
  record.latent_scales = {0.5f, 0.25f};
  record.rope_scales = {2.0f, 4.0f};
  record.latents.assign(2 * 70, 1.0f);
  record.ropes.assign(2 * 4, 1.0f);
  record.index_keys.assign(16, 0.5f);
  std::vector<uint8_t> latents(size_t(shape.latent_page_bytes()), uint8_t{0xaa});
  std::vector<uint8_t> keys(size_t(shape.index_page_bytes()), uint8_t{0xaa});
  StoreColibriRecord(shape, record, 5, latents, keys);
  for (int64_t l = 0; l < 2; ++l) {
    const uint8_t* row = &latents[size_t(l * shape.row.page_bytes() + 5 * shape.row.row_bytes())];
    EXPECT_EQ(std::memcmp(row, &record.latent_codes[size_t(l * 70)], 70), 0);
    EXPECT_EQ(std::memcmp(row + shape.row.rope_part().at, &record.rope_codes[size_t(l * 4)], 4), 0);
    float scale;
    std::memcpy(&scale, row + shape.row.latent_part().scale_at, sizeof scale);
    EXPECT_EQ(scale, 4 * record.latent_scales[size_t(l)]);
    EXPECT_EQ(row[70], 0);  // padding
  }
  EXPECT_EQ(latents[size_t(4 * shape.row.row_bytes())], 0xaa);  // the row before is untouched
}

// The built-in model's rows as floats, as colibri would have saved them, then back.
TEST(ColibriRows, AConversationOfTheBuiltInModelGoesOn) {
  EngineOptions options;
  options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  options.num_threads = 2;
  options.load_mtp = false;
  options.context_tokens = 512;
  options.kv_tokens = 1024;
  const auto engine = Engine::Open(options);
  const KvShape& shape = engine->kv_shape();
  const std::vector<int32_t> ids = engine->tokenizer().Encode(
      "[gMASK]<sop><|user|>What is a river?<|assistant|><think></think>A river is a large stream.",
      AddedTokens::kParse);
  const auto original = engine->NewSequence({.shares_prefixes = false});
  original->Append(ids, LogitsMode::kNone);
  std::vector<uint8_t> page(size_t(engine->page_bytes()));
  original->CopyPage(0, page);
  ASSERT_LT(ids.size(), 64u);

  const auto record_of = [&](int64_t place) {
    ColibriKvRecord record;
    record.token = ids[size_t(place)];
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      const uint8_t* row =
          &page[size_t(l * shape.row.page_bytes() + place * shape.row.row_bytes())];
      for (const KvRowPart& part : {shape.row.latent_part(), shape.row.rope_part()}) {
        auto& out = part.at == 0 ? record.latents : record.ropes;
        for (int64_t i = 0; i < part.num_values; ++i) {
          const PlanePair pair = RowValue(part, row, i);
          out.push_back(RowScale(part, row) / 256 * float(256 * pair.hi + pair.lo));
        }
      }
    }
    const uint8_t* keys = &page[size_t(shape.latent_page_bytes())];
    for (int64_t l = 0; l < shape.num_index_layers(); ++l) {
      const uint8_t* panel = keys + l * shape.index.page_bytes() +
                             place / kIndexPanelTokens * shape.index.panel_bytes();
      const int64_t lane = place % kIndexPanelTokens;
      float scale;
      std::memcpy(&scale, panel + shape.index.scales_at() + 4 * lane, sizeof scale);
      for (int64_t i = 0; i < shape.index.dim; ++i) {
        const int hi = panel[shape.index.high_at(lane, i)] - 128;
        const int lo = panel[shape.index.low_at(lane, i)] - 128;
        record.index_keys.push_back(scale / 256 * float(256 * hi + lo));
      }
    }
    return record;
  };
  const auto restored = engine->NewSequence({.shares_prefixes = false});
  restored->Restore(ids, [&](int64_t, std::span<uint8_t> latents, std::span<uint8_t> keys) {
    for (int64_t place = 0; place < int64_t(ids.size()); ++place) {
      StoreColibriRecord(shape, record_of(place), place, latents, keys);
    }
  });
  const int32_t next = 11;
  const auto logits = original->Append(std::span(&next, 1), LogitsMode::kLast);
  const std::vector<float> want(logits.begin(), logits.end());
  const auto got = restored->Append(std::span(&next, 1), LogitsMode::kLast);
  EXPECT_EQ(Argmax(got), Argmax(want));
  // Rows are quantised a second time: some of the 9 L + 1 stages of docs/numerics.md, "Against
  // float32", whose error of a logit has a standard deviation of e sqrt(9 L + 1) of the spread.
  EXPECT_LE(RelativeDifference(want, got),
            7.7e-5 * std::sqrt(double(9 * engine->config().num_layers + 1)));
}

}  // namespace
}  // namespace hillstar
