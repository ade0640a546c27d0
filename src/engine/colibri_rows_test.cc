// Rows of the predecessor's conversations: codes are taken over as they are, floats are quantised
// as the engine quantises its own, and a conversation of the built-in model goes on from them.
#include "engine/colibri_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "engine/sampler.h"
#include "formats/safetensors_test_files.h"
#include "hillstar/engine.h"
#include "kv/row_values.h"
#include "model/config.h"
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

// The predecessor saves no rows of an MTP layer, which is the last.
TEST(ColibriRows, AnMtpLayerIsNotInTheFileAndItsRowsStay) {
  KvShape shape = SmallShape(KvFormat::kQ15);
  shape.num_layers = 3;
  shape.has_index_keys = {false, true, true};
  const ColibriKvShape colibri = ColibriShapeOf(shape, 2, 100);
  EXPECT_EQ(colibri.num_layers, 2);
  EXPECT_EQ(colibri.num_index_layers, 1);
  EXPECT_EQ(colibri.index_head_dim, 16);
  EXPECT_EQ(ColibriShapeOf(shape, 1, 100).index_head_dim, 0);
  ColibriKvRecord record;
  record.latents.assign(2 * 70, 1.0f);
  record.ropes.assign(2 * 4, 1.0f);
  record.index_keys.assign(16, 0.5f);
  std::vector<uint8_t> latents(size_t(shape.latent_page_bytes()), uint8_t{0xaa});
  std::vector<uint8_t> keys(size_t(shape.index_page_bytes()), uint8_t{0xaa});
  StoreColibriRecord(shape, record, 0, latents, keys);
  const auto untouched = [](const std::vector<uint8_t>& bytes, int64_t from) {
    return size_t(std::count(bytes.begin() + from, bytes.end(), uint8_t{0xaa})) ==
           bytes.size() - size_t(from);
  };
  EXPECT_TRUE(untouched(latents, 2 * shape.row.page_bytes()));
  EXPECT_FALSE(untouched(latents, shape.row.page_bytes()));
  EXPECT_TRUE(untouched(keys, shape.index.page_bytes()));
  EXPECT_FALSE(untouched(keys, 0));
}

// One sequence's page of the built-in model, seen as floats.
class FloatPage {
 public:
  FloatPage(const Engine& engine, const Sequence& sequence)
      : shape_(engine.kv_shape()), bytes_(size_t(engine.page_bytes())) {
    sequence.CopyPage(0, bytes_);
  }

  const uint8_t* Row(int64_t layer, int64_t place) const {
    return &bytes_[size_t(layer * shape_.row.page_bytes() + place * shape_.row.row_bytes())];
  }
  std::vector<float> Part(const KvRowPart& part, int64_t layer, int64_t place) const {
    const uint8_t* row = Row(layer, place);
    std::vector<float> values;
    for (int64_t i = 0; i < part.num_values; ++i) {
      const PlanePair pair = RowValue(part, row, i);
      values.push_back(RowScale(part, row) / 256 * float(256 * pair.hi + pair.lo));
    }
    return values;
  }
  // 256 hi + lo of each dimension, then the scale.
  struct Key {
    std::vector<int> planes;
    float scale;
  };
  Key IndexKey(int64_t index_layer, int64_t place) const {
    const IndexKeyLayout& index = shape_.index;
    const uint8_t* panel =
        &bytes_[size_t(shape_.latent_page_bytes() + index_layer * index.page_bytes() +
                       place / kIndexPanelTokens * index.panel_bytes())];
    const int64_t lane = place % kIndexPanelTokens;
    Key key;
    for (int64_t i = 0; i < index.dim; ++i) {
      const int hi = panel[index.high_at(lane, i)] - 128, lo = panel[index.low_at(lane, i)] - 128;
      key.planes.push_back(256 * hi + lo);
    }
    std::memcpy(&key.scale, panel + index.scales_at() + 4 * lane, sizeof key.scale);
    return key;
  }

 private:
  const KvShape& shape_;
  std::vector<uint8_t> bytes_;
};

void Write(std::ofstream& file, const std::vector<float>& values) {
  file.write(reinterpret_cast<const char*>(values.data()), std::streamsize(values.size() * 4));
}

// What colibri would have saved of the tokens, in version 1.
void WriteColibriFile(const std::filesystem::path& path, const FloatPage& page,
                      const KvShape& shape, const ColibriKvShape& colibri,
                      std::span<const int32_t> ids) {
  std::ofstream file(path, std::ios::binary);
  file.write("COLIKV1", 8);
  const int32_t header[] = {
      colibri.num_layers,       colibri.latent, colibri.rope,        colibri.index_head_dim,
      colibri.num_index_layers, colibri.vocab,  int32_t(ids.size()), 0};
  file.write(reinterpret_cast<const char*>(header), sizeof header);
  for (int64_t place = 0; place < int64_t(ids.size()); ++place) {
    file.write(reinterpret_cast<const char*>(&ids[size_t(place)]), 4);
    for (int64_t l = 0; l < colibri.num_layers; ++l) {
      Write(file, page.Part(shape.row.latent_part(), l, place));
      Write(file, page.Part(shape.row.rope_part(), l, place));
    }
    for (int64_t l = 0; l < colibri.num_index_layers; ++l) {
      const FloatPage::Key key = page.IndexKey(l, place);
      std::vector<float> values;
      for (const int planes : key.planes) values.push_back(key.scale / 256 * float(planes));
      Write(file, values);
    }
  }
}

// The largest value of a row has the planes 127 and 0, so it is s * 127, rounded once, and the new
// scale is that over 127, rounded once. All other planes are at most 0.004 from a whole number
// (docs/numerics.md, "Two planes") and therefore the same.
bool ScaleIsTheSame(float scale, float original) {
  const double u = std::ldexp(1.0, -24);
  return std::fabs(double(scale) - double(original)) <= (2 * u + u * u) * double(original);
}

// The built-in model's rows as floats, as colibri would have saved them, then back.
TEST(ColibriRows, AConversationOfTheBuiltInModelGoesOn) {
  EngineOptions options;
  options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  options.num_threads = 2;
  options.context_tokens = 512;
  options.kv_tokens = 1024;
  const auto engine = Engine::Open(options);
  const KvShape& shape = engine->kv_shape();
  const ColibriKvShape colibri =
      ColibriShapeOf(shape, engine->config().num_layers, engine->config().vocab_size);
  ASSERT_EQ(shape.num_layers, 7);  // one is an MTP layer
  EXPECT_EQ(colibri.num_layers, 6);
  EXPECT_EQ(colibri.num_index_layers, 3);
  const std::vector<int32_t> ids = engine->tokenizer().Encode(
      "[gMASK]<sop><|user|>What is a river?<|assistant|><think></think>A river is a large stream.",
      AddedTokens::kParse);
  ASSERT_LT(ids.size(), 64u);
  const auto original = engine->NewSequence({.shares_prefixes = false});
  original->Append(ids, LogitsMode::kNone);
  const FloatPage page(*engine, *original);

  const TempFolder folder;
  const auto path = folder.path() / ".coli_kv";
  WriteColibriFile(path, page, shape, colibri, ids);
  ColibriKvFile saved = ColibriKvFile::Open(path, colibri);
  ASSERT_EQ(saved.num_tokens(), int64_t(ids.size()));
  const auto restored = engine->NewSequence({.shares_prefixes = false});
  restored->Restore(ids, [&](int64_t, std::span<uint8_t> latents, std::span<uint8_t> keys) {
    ColibriKvRecord record;
    for (int64_t place = 0; place < int64_t(ids.size()); ++place) {
      ASSERT_TRUE(saved.ReadRecord(place, &record));
      EXPECT_EQ(record.token, ids[size_t(place)]);
      StoreColibriRecord(shape, record, place, latents, keys);
    }
  });

  const FloatPage again(*engine, *restored);
  for (int64_t place = 0; place < int64_t(ids.size()); ++place) {
    for (int64_t l = 0; l < colibri.num_layers; ++l) {
      const uint8_t *want = page.Row(l, place), *got = again.Row(l, place);
      ASSERT_EQ(std::memcmp(got, want, size_t(shape.row.value_bytes())), 0) << place << " " << l;
      for (const KvRowPart& part : {shape.row.latent_part(), shape.row.rope_part()}) {
        ASSERT_TRUE(ScaleIsTheSame(RowScale(part, got), RowScale(part, want)));
      }
    }
    for (int64_t l = 0; l < colibri.num_index_layers; ++l) {
      const FloatPage::Key want = page.IndexKey(l, place), got = again.IndexKey(l, place);
      ASSERT_EQ(got.planes, want.planes);
      ASSERT_TRUE(ScaleIsTheSame(got.scale, want.scale));
    }
  }
  const int32_t next = 11;
  const int32_t want = Argmax(original->Append(std::span(&next, 1), LogitsMode::kLast));
  EXPECT_EQ(Argmax(restored->Append(std::span(&next, 1), LogitsMode::kLast)), want);
}

}  // namespace
}  // namespace hillstar
