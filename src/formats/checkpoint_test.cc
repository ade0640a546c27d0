#include "formats/checkpoint.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <thread>

#include "formats/checkpoint_index.h"
#include "formats/safetensors_test_files.h"

namespace hillstar {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string Floats(const std::vector<float>& values) { return BytesOf(values); }

// `n` values as BF16 that count up from `first`.
std::string Bf16Ramp(int first, int n) {
  std::vector<uint16_t> bits;
  for (int i = 0; i < n; ++i) {
    bits.push_back(uint16_t(std::bit_cast<uint32_t>(float(first + i)) >> 16));
  }
  return BytesOf(bits);
}

std::vector<float> ReadAll(const Checkpoint& checkpoint, std::string_view name, int64_t rows,
                           int64_t cols) {
  std::vector<float> out(size_t(rows * cols));
  checkpoint.ReadRows(name, 0, rows, out.data());
  return out;
}

void ExpectOpenError(const TempFolder& folder, ErrorCode code,
                     std::initializer_list<std::string_view> parts) {
  ExpectError(code, parts, [&] { Checkpoint::Open(folder.path()); });
}

// --- the folder

TEST(CheckpointFolder, RefusesWhatIsNoCompleteCheckpoint) {
  ExpectError(ErrorCode::kNotFound, {"/nonexistent-folder"},
              [] { Checkpoint::Open("/nonexistent-folder"); });
  TempFolder folder;
  ExpectOpenError(folder, ErrorCode::kNotFound, {"*.safetensors"});
  const std::string shard = SafetensorsBytes({{"a", "F32", {1}, Floats({1})}});
  folder.Write("model-00001-of-00003.safetensors", shard);
  ExpectOpenError(folder, ErrorCode::kNotFound,
                  {"model-00002-of-00003.safetensors", "2 of 3", "Download"});
  folder.Write("model-00002-of-00003.safetensors.incomplete", "");
  ExpectOpenError(folder, ErrorCode::kBadFile,
                  {"model-00002-of-00003.safetensors.incomplete", "not finished"});
}

TEST(CheckpointFolder, ALeftoverBesideItsFinishedFileIsHarmless) {
  TempFolder folder;
  folder.Write("model.safetensors", SafetensorsBytes({{"a", "F32", {1}, Floats({1})}}));
  folder.Write("model.safetensors.incomplete", "abc");
  EXPECT_TRUE(Checkpoint::Open(folder.path())->Has("a"));
}

TEST(CheckpointFolder, NamesTheDamagedShard) {
  TempFolder folder;
  const std::string one = SafetensorsBytes({{"a", "F32", {1}, Floats({1})}});
  const std::string two = SafetensorsBytes({{"b", "F32", {4}, Floats({1, 2, 3, 4})}});
  folder.Write("one.safetensors", one);
  for (const std::string& damaged :
       {two.substr(0, two.size() - 1), two.substr(0, two.size() / 2), std::string(),
        std::string("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n")}) {
    folder.Write("two.safetensors", damaged);
    ExpectOpenError(folder, ErrorCode::kBadFile, {"two.safetensors", "ownload"});
  }
}

TEST(CheckpointFolder, SideFiles) {
  TempFolder folder;
  folder.Write("model.safetensors", SafetensorsBytes({{"a", "F32", {1}, Floats({1})}}));
  folder.Write("config.json", "{\"x\": 1}");
  folder.Write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  const auto checkpoint = Checkpoint::Open(folder.path());
  EXPECT_EQ(checkpoint->SideFile("config.json"), "{\"x\": 1}");
  EXPECT_EQ(checkpoint->SideFile("generation_config.json"), "");
  ExpectError(ErrorCode::kBadFile, {"tokenizer.json", "git-LFS"},
              [&] { checkpoint->SideFile("tokenizer.json"); });
}

// --- duplicates and the index

struct DuplicateFixture {
  TempFolder folder;
  // `t` is 1 in A and 2 in B; C has another tensor.
  void WriteShards(const char* a, const char* b) const {
    folder.Write(a, SafetensorsBytes({{"t", "F32", {1}, Floats({1})}}));
    folder.Write(b, SafetensorsBytes({{"t", "F32", {1}, Floats({2})}}));
    folder.Write("c.safetensors", SafetensorsBytes({{"u", "F32", {1}, Floats({3})}}));
  }
  void WriteIndex(std::string_view shard_of_t) const {
    folder.Write("model.safetensors.index.json",
                 fmt::format(R"({{"metadata":{{}},"weight_map":{{"t":"{}","u":"c.safetensors"}}}})",
                             shard_of_t));
  }
  float ReadT() const {
    const auto checkpoint = Checkpoint::Open(folder.path());
    checkpoint->Expect({"t", {1}});
    float value = 0;
    checkpoint->ReadRows("t", 0, 1, &value);
    return value;
  }
};

TEST(CheckpointIndex, DuplicateNamesAreSettledByTheIndexAlone) {
  // The folder is read in the order of names: both orders of A and B.
  for (const auto& [a, b] : std::vector<std::pair<const char*, const char*>>{
           {"first.safetensors", "second.safetensors"},
           {"second.safetensors", "first.safetensors"}}) {
    DuplicateFixture fixture;
    fixture.WriteShards(a, b);
    ExpectOpenError(fixture.folder, ErrorCode::kBadFile, {"'t'", a, b});
    fixture.WriteIndex(a);
    EXPECT_EQ(fixture.ReadT(), 1.0f);
    fixture.WriteIndex(b);
    EXPECT_EQ(fixture.ReadT(), 2.0f);
    fixture.WriteIndex("c.safetensors");
    ExpectOpenError(fixture.folder, ErrorCode::kBadFile, {"'t'", "c.safetensors"});
    fixture.WriteIndex("d.safetensors");
    ExpectOpenError(fixture.folder, ErrorCode::kBadFile, {"d.safetensors", "Download"});
  }
}

TEST(CheckpointIndex, EitherOrderOfShardsGivesTheSamePlaces) {
  DuplicateFixture fixture;
  fixture.WriteShards("a.safetensors", "b.safetensors");
  for (const char* wanted : {"a.safetensors", "b.safetensors"}) {
    for (const bool reversed : {false, true}) {
      std::vector<std::unique_ptr<SafetensorsFile>> shards;
      for (const char* name : {"a.safetensors", "b.safetensors"}) {
        shards.push_back(std::make_unique<SafetensorsFile>(fixture.folder.path() / name));
      }
      if (reversed) std::swap(shards[0], shards[1]);
      const std::vector<TensorPlace> places = MergeShards(shards, {{"t", wanted}});
      ASSERT_EQ(places.size(), 1u);
      EXPECT_EQ(places[0].shard->name(), wanted);
      ExpectError(ErrorCode::kBadFile, {"'t'"}, [&] { MergeShards(shards, {}); });
      ExpectError(ErrorCode::kBadFile, {"c.safetensors"}, [&] {
        MergeShards(shards, {{"t", "c.safetensors"}});
      });
    }
  }
}

TEST(CheckpointIndex, ADuplicateThatTheIndexDoesNotMapIsRefused) {
  DuplicateFixture fixture;
  fixture.WriteShards("a.safetensors", "b.safetensors");
  fixture.folder.Write("model.safetensors.index.json", R"({"weight_map":{"u":"c.safetensors"}})");
  ExpectOpenError(fixture.folder, ErrorCode::kBadFile, {"'t'", "a.safetensors", "b.safetensors"});
}

TEST(CheckpointIndex, RefusesOtherIndices) {
  TempFolder folder;
  folder.Write("a.safetensors", SafetensorsBytes({{"t", "F32", {1}, Floats({1})}}));
  for (const char* text :
       {"{", "[]", "7", "{}", R"({"weight_map":[]})", R"({"weight_map":{"t":7}})",
        R"({"weight_map":{"t":"../a.safetensors"}})", R"({"weight_map":{"t":"x/a.safetensors"}})",
        R"({"weight_map":{"t":""}})", R"({"weight_map":{"t":".."}})",
        R"({"weight_map":{"t":"a.safetensors","t":"b.safetensors"}})",
        R"({"weight_map":{"t":"a.safetensors","v":"a.safetensors"}})"}) {
    SCOPED_TRACE(text);
    folder.Write("model.safetensors.index.json", text);
    ExpectOpenError(folder, ErrorCode::kBadFile, {"model.safetensors.index.json"});
  }
  folder.Write("model.safetensors.index.json", R"({"weight_map":{"t":"a.safetensors"}})");
  EXPECT_TRUE(Checkpoint::Open(folder.path())->Has("t"));
}

// --- names

TEST(CheckpointNames, APrefixIsARole) {
  for (const auto& [prefix, head] : std::vector<std::pair<std::string, std::string>>{
           {"model.", "lm_head.weight"},
           {"model.language_model.", "lm_head.weight"},
           {"language_model.model.", "language_model.lm_head.weight"},
           {"model.language_model.", "model.language_model.lm_head.weight"},
           {"", "lm_head.weight"}}) {
    SCOPED_TRACE(prefix);
    TempFolder folder;
    folder.Write(
        "model.safetensors",
        SafetensorsBytes(
            {{prefix + "embed_tokens.weight", "F32", {2, 1}, Floats({1, 2})},
             {prefix + "layers.0.mlp.up_proj.weight", "F8_E4M3", {1, 2}, "88"},
             {prefix + "layers.0.mlp.up_proj.weight_scale_inv", "F32", {1, 1}, Floats({1})},
             {prefix + "layers.5.embed_tokens.weight", "F32", {1}, Floats({9})},
             {prefix + "norm.weight", "F32", {1}, Floats({3})},
             {head, "F32", {2, 1}, Floats({4, 5})},
             {"visual.norm.weight", "F32", {1}, Floats({6})}}));
    const auto checkpoint = Checkpoint::Open(folder.path());
    EXPECT_EQ(checkpoint->List().size(), 6u);
    for (const char* name : {"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
                             "model.norm.weight", "lm_head.weight", "visual.norm.weight"}) {
      EXPECT_TRUE(checkpoint->Has(name)) << name;
    }
    checkpoint->Expect({"lm_head.weight", {2, 1}});
    EXPECT_EQ(ReadAll(*checkpoint, "lm_head.weight", 2, 1), (std::vector<float>{4, 5}));
    checkpoint->Expect({"model.layers.0.mlp.up_proj.weight", {1, 2}});
    EXPECT_EQ(ReadAll(*checkpoint, "model.layers.0.mlp.up_proj.weight", 1, 2),
              (std::vector<float>{1, 1}));
  }
}

TEST(CheckpointNames, TwoModelsInOneFolderAreRefused) {
  TempFolder folder;
  folder.Write("model.safetensors",
               SafetensorsBytes({{"a.embed_tokens.weight", "F32", {1}, Floats({1})},
                                 {"b.embed_tokens.weight", "F32", {1}, Floats({1})}}));
  ExpectOpenError(folder, ErrorCode::kBadFile, {"a.embed_tokens", "b.embed_tokens"});
  folder.Write("model.safetensors",
               SafetensorsBytes({{"model.x.embed_tokens.weight", "F32", {1}, Floats({1})},
                                 {"model.x.norm.weight", "F32", {1}, Floats({1})},
                                 {"model.norm.weight", "F32", {1}, Floats({1})}}));
  ExpectOpenError(folder, ErrorCode::kBadFile, {"model.x.norm.weight", "model.norm.weight"});
}

TEST(CheckpointNames, MissingAndAdditionalTensors) {
  TempFolder folder;
  const std::string shared = "model.layers.1.self_attn.indexer.wk.weight";
  folder.Write("model.safetensors", SafetensorsBytes({{shared, "F32", {1, 1}, Floats({1})}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  // Weights that a shared layer brings along do no harm; a full layer's absence is told by name.
  EXPECT_TRUE(checkpoint->Has(shared));
  ExpectError(ErrorCode::kNotFound, {"model.layers.0.self_attn.indexer.wk.weight", "[128, 6144]"},
              [&] {
                checkpoint->Expect({"model.layers.0.self_attn.indexer.wk.weight", {128, 6144}});
              });
}

// --- plain encodings

TEST(CheckpointPlain, ReadsRowsOfEveryEncoding) {
  TempFolder folder;
  folder.Write(
      "model.safetensors",
      SafetensorsBytes(
          {{"bf16", "BF16", {3, 2}, Bf16Ramp(1, 6)},
           {"f16", "F16", {2, 2}, BytesOf(std::vector<uint16_t>{0x3c00, 0xc000, 0x0001, 0x7bff})},
           {"f32", "F32", {2, 2}, Floats({1, -2, 0.5f, 1e30f})},
           {"vector", "BF16", {5}, Bf16Ramp(10, 5)}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  checkpoint->Expect({"bf16", {3, 2}});
  checkpoint->Expect({"f16", {2, 2}});
  checkpoint->Expect({"f32", {2, 2}});
  checkpoint->Expect({"vector", {5}});
  EXPECT_EQ(ReadAll(*checkpoint, "bf16", 3, 2), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  std::vector<float> row(2);
  checkpoint->ReadRows("bf16", 2, 1, row.data());
  EXPECT_EQ(row, (std::vector<float>{5, 6}));
  EXPECT_EQ(ReadAll(*checkpoint, "f16", 2, 2),
            (std::vector<float>{1, -2, std::ldexp(1.0f, -24), 65504}));
  EXPECT_EQ(ReadAll(*checkpoint, "f32", 2, 2), (std::vector<float>{1, -2, 0.5f, 1e30f}));
  EXPECT_EQ(ReadAll(*checkpoint, "vector", 1, 5), (std::vector<float>{10, 11, 12, 13, 14}));
  checkpoint->ReadRows("bf16", 3, 0, nullptr);
}

TEST(CheckpointPlain, ShapesMustBeTheConfigurations) {
  TempFolder folder;
  folder.Write("model.safetensors", SafetensorsBytes({{"m", "BF16", {3, 2}, Bf16Ramp(1, 6)},
                                                      {"i", "I64", {1}, std::string(8, 'x')}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 3}, {6}, {4, 2}, {3, 1}, {3, 3}}) {
    ExpectError(ErrorCode::kBadFile, {"'m'", "[3, 2]", ShapeText(shape)}, [&] {
      checkpoint->Expect({"m", shape});
    });
  }
  ExpectError(ErrorCode::kUnsupported, {"'i'", "I64"}, [&] { checkpoint->Expect({"i", {1}}); });
}

TEST(CheckpointPlain, NonFiniteValuesAreNamedByRowAndColumn) {
  TempFolder folder;
  // Large enough for several chunks.
  constexpr int64_t kRows = 300;
  constexpr int64_t kCols = 1000;
  for (const float bad : {kInf, -kInf, kNan}) {
    std::vector<float> values(size_t(kRows * kCols), 1.0f);
    values[size_t(257 * kCols + 31)] = bad;
    folder.Write("model.safetensors",
                 SafetensorsBytes({{"m", "F32", {kRows, kCols}, Floats(values)}}));
    const auto checkpoint = Checkpoint::Open(folder.path());
    checkpoint->Expect({"m", {kRows, kCols}});
    std::vector<float> out(size_t(kRows * kCols));
    ExpectError(ErrorCode::kBadFile, {"'m'", "row 257", "column 31"},
                [&] { checkpoint->ReadRows("m", 0, kRows, out.data()); });
    ExpectError(ErrorCode::kBadFile, {"'m'", "row 257", "column 31"},
                [&] { checkpoint->ReadRows("m", 257, 1, out.data()); });
    EXPECT_NO_THROW(checkpoint->ReadRows("m", 0, 257, out.data()));
    EXPECT_NO_THROW(checkpoint->ReadRows("m", 258, kRows - 258, out.data()));
  }
}

TEST(CheckpointPlain, ThreadsMayReadAtOnce) {
  TempFolder folder;
  constexpr int64_t kRows = 512;
  constexpr int64_t kCols = 600;
  std::vector<float> values(size_t(kRows * kCols));
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  folder.Write("model.safetensors",
               SafetensorsBytes({{"m", "F32", {kRows, kCols}, Floats(values)}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  checkpoint->Expect({"m", {kRows, kCols}});
  std::vector<float> out(values.size());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t row = t; row < kRows; row += 4) {
        checkpoint->ReadRows("m", row, 1, out.data() + row * kCols);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(out, values);
}

// --- FP8

struct Fp8Matrix {
  int64_t rows = 200;
  int64_t cols = 300;
  std::vector<uint8_t> codes;
  std::vector<float> scales;  // [2, 3]
  Fp8Matrix() {
    for (int64_t i = 0; i < rows * cols; ++i) {
      uint8_t code = uint8_t(i * 31 + i / 300 * 7);
      if ((code & 0x7f) == 0x7f) code = 1;
      codes.push_back(code);
    }
    scales = {0.5f, 0.25f, 3e-5f, 7.0f, 1.5f, 0.001f};
  }
  void Write(const TempFolder& folder) const {
    folder.Write("model.safetensors",
                 SafetensorsBytes({{"m.weight", "F8_E4M3", {rows, cols}, BytesOf(codes)},
                                   {"m.weight_scale_inv", "F32", {2, 3}, Floats(scales)}}));
  }
};

float Fp8ByDefinition(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const float fraction = float(code & 7) / 8.0f;
  const float magnitude =
      exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1.0f + fraction, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

TEST(CheckpointFp8, ScalesBlocksOf128) {
  TempFolder folder;
  const Fp8Matrix matrix;
  matrix.Write(folder);
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_EQ(checkpoint->List().size(), 1u);
  EXPECT_EQ(checkpoint->List()[0].encoding, "F8_E4M3");
  EXPECT_EQ(checkpoint->List()[0].stored_bytes, uint64_t(200 * 300 + 24));
  EXPECT_FALSE(checkpoint->Has("m.weight_scale_inv"));
  checkpoint->Expect({"m.weight", {200, 300}});
  // Pieces that begin and end inside blocks give the same values as the whole.
  for (const auto& [first, count] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 200}, {127, 2}, {128, 1}, {199, 1}, {3, 130}}) {
    std::vector<float> out(size_t(count * matrix.cols));
    checkpoint->ReadRows("m.weight", first, count, out.data());
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < matrix.cols; ++c) {
        const int64_t row = first + r;
        const float want = Fp8ByDefinition(matrix.codes[size_t(row * matrix.cols + c)]) *
                           matrix.scales[size_t(row / 128 * 3 + c / 128)];
        ASSERT_EQ(std::bit_cast<uint32_t>(out[size_t(r * matrix.cols + c)]),
                  std::bit_cast<uint32_t>(want))
            << row << " " << c;
      }
    }
  }
}

TEST(CheckpointFp8, NanCodesAndOverflowAreRefused) {
  for (const int code : {0x7f, 0xff}) {
    TempFolder folder;
    Fp8Matrix matrix;
    matrix.codes[size_t(130 * matrix.cols + 5)] = uint8_t(code);
    matrix.Write(folder);
    const auto checkpoint = Checkpoint::Open(folder.path());
    checkpoint->Expect({"m.weight", {200, 300}});
    std::vector<float> out(size_t(200 * 300));
    ExpectError(ErrorCode::kBadFile, {"m.weight", "row 130", "column 5"},
                [&] { checkpoint->ReadRows("m.weight", 0, 200, out.data()); });
  }
  TempFolder folder;
  Fp8Matrix matrix;
  matrix.scales[0] = 1e38f;
  matrix.Write(folder);
  const auto checkpoint = Checkpoint::Open(folder.path());
  checkpoint->Expect({"m.weight", {200, 300}});
  std::vector<float> out(size_t(200 * 300));
  ExpectError(ErrorCode::kBadFile, {"m.weight", "row 0"},
              [&] { checkpoint->ReadRows("m.weight", 0, 200, out.data()); });
}

TEST(CheckpointFp8, ScalesMustBeFiniteAndPositive) {
  for (const float bad : {0.0f, -0.0f, kNan, -kNan, kInf, -kInf, -1.0f}) {
    TempFolder folder;
    Fp8Matrix matrix;
    matrix.scales[4] = bad;
    matrix.Write(folder);
    const auto checkpoint = Checkpoint::Open(folder.path());
    ExpectError(ErrorCode::kBadFile, {"m.weight_scale_inv", "[1, 1]"}, [&] {
      checkpoint->Expect({"m.weight", {200, 300}});
    });
  }
}

TEST(CheckpointFp8, ScalesMustBeThereAndFit) {
  const Fp8Matrix matrix;
  const TestTensor values = {"m.weight", "F8_E4M3", {200, 300}, BytesOf(matrix.codes)};
  const auto expect_bad = [&](std::vector<TestTensor> tensors,
                              std::initializer_list<std::string_view> parts) {
    TempFolder folder;
    folder.Write("model.safetensors", SafetensorsBytes(tensors));
    const auto checkpoint = Checkpoint::Open(folder.path());
    ExpectError(ErrorCode::kBadFile, parts, [&] { checkpoint->Expect({"m.weight", {200, 300}}); });
  };
  expect_bad({values}, {"m.weight_scale_inv", "missing"});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 2}, {6}, {2, 4}, {1, 3}}) {
    int64_t n = 1;
    for (const int64_t dim : shape) n *= dim;
    expect_bad(
        {values, {"m.weight_scale_inv", "F32", shape, Floats(std::vector<float>(size_t(n), 1.0f))}},
        {"m.weight_scale_inv", "[2, 3]", ShapeText(shape)});
  }
  expect_bad({values, {"m.weight_scale_inv", "BF16", {2, 3}, Bf16Ramp(1, 6)}},
             {"m.weight_scale_inv", "BF16"});
  expect_bad({{"m.weight", "BF16", {200, 300}, Bf16Ramp(0, 200 * 300)},
              {"m.weight_scale_inv", "F32", {2, 3}, Floats(matrix.scales)}},
             {"m.weight", "plain BF16"});
  TempFolder folder;
  matrix.Write(folder);
  const auto checkpoint = Checkpoint::Open(folder.path());
  ExpectError(ErrorCode::kBadFile, {"m.weight", "[200, 300]", "[200, 301]"}, [&] {
    checkpoint->Expect({"m.weight", {200, 301}});
  });
}

TEST(CheckpointForeign, OtherQuantisationsAreRefusedByName) {
  const std::vector<std::pair<std::vector<TestTensor>, const char*>> cases = {
      {{{"m.weight", "F4", {2, 2}, "xx"}}, "FP4"},
      {{{"m.weight", "U8", {2, 2}, "xxxx"}, {"m.weight_scale", "F8_E4M3", {2, 1}, "xx"}}, "NVFP4"},
      {{{"m.weight_packed", "U8", {2, 2}, "xxxx"}}, "NVFP4"},
      {{{"m.qweight", "I32", {1}, "xxxx"}}, "GPTQ"}};
  for (const auto& [tensors, what] : cases) {
    TempFolder folder;
    folder.Write("model.safetensors", SafetensorsBytes(tensors));
    ExpectOpenError(folder, ErrorCode::kUnsupported, {tensors[0].name, what, "FP8"});
  }
}

// --- colibri

TEST(CheckpointColibri, ReadsRowsWithTheShapeGiven) {
  TempFolder folder;
  // [2, 32] in groups of 16 columns: four scales.
  std::string nibbles;
  for (int i = 0; i < 32; ++i) nibbles += char(uint8_t(i * 29));
  const std::vector<float> scales = {1.0f, 0.5f, 0.25f, 3.0f};
  folder.Write("out-00000.safetensors",
               SafetensorsBytes({{"m.weight.qs", "F32", {4}, Floats(scales)},
                                 {"m.weight", "U8", {32}, nibbles}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  EXPECT_EQ(checkpoint->List()[0].encoding, "colibri");
  EXPECT_EQ(checkpoint->List()[0].shape, (std::vector<int64_t>{32}));
  checkpoint->Expect({"m.weight", {2, 32}});
  ASSERT_EQ(checkpoint->List().size(), 1u);
  EXPECT_EQ(checkpoint->List()[0].encoding, "colibri-int4-g16");
  EXPECT_EQ(checkpoint->List()[0].shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(checkpoint->List()[0].stored_bytes, 32u + 16u);
  const std::vector<float> got = ReadAll(*checkpoint, "m.weight", 2, 32);
  std::vector<float> second(32);
  checkpoint->ReadRows("m.weight", 1, 1, second.data());
  for (int64_t i = 0; i < 64; ++i) {
    const int byte = uint8_t(nibbles[size_t(i / 2)]);
    const int nibble = i % 2 == 0 ? byte % 16 : byte / 16;
    ASSERT_EQ(got[size_t(i)], float(nibble - 8) * scales[size_t(i / 16)]) << i;
  }
  for (size_t i = 0; i < 32; ++i) {
    ASSERT_EQ(second[i], got[32 + i]);
  }
}

TEST(CheckpointColibri, SizesThatFitNothingAreRefused) {
  const std::string values(2 * 16, 'x');
  const auto expect_bad = [](const std::string& bytes, const std::vector<float>& scales) {
    TempFolder folder;
    folder.Write(
        "out.safetensors",
        SafetensorsBytes({{"m.weight", "U8", {int64_t(bytes.size())}, bytes},
                          {"m.weight.qs", "F32", {int64_t(scales.size())}, Floats(scales)}}));
    const auto checkpoint = Checkpoint::Open(folder.path());
    ExpectError(ErrorCode::kBadFile, {"m.weight"}, [&] {
      checkpoint->Expect({"m.weight", {2, 32}});
    });
  };
  expect_bad(values.substr(1), {1, 1});
  expect_bad(values, {1, 1, 1});
  for (const float bad : {0.0f, kNan, kInf, -1.0f}) expect_bad(values, {1, bad});
}

TEST(CheckpointColibri, MissingScalesAndOddShapesAreRefused) {
  TempFolder folder;
  folder.Write("out.safetensors",
               SafetensorsBytes({{"m.weight", "U8", {32}, std::string(32, 'x')},
                                 {"v.weight", "U8", {3, 16}, std::string(48, 'x')},
                                 {"v.weight.qs", "F32", {2}, Floats({1, 1})},
                                 {"h.weight", "U8", {32}, std::string(32, 'x')},
                                 {"h.weight.qs", "F16", {4}, std::string(8, 'x')}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ExpectError(ErrorCode::kBadFile, {"m.weight.qs", "missing"}, [&] {
    checkpoint->Expect({"m.weight", {2, 32}});
  });
  ExpectError(ErrorCode::kBadFile, {"v.weight", "[3, 16]"}, [&] {
    checkpoint->Expect({"v.weight", {2, 48}});
  });
  ExpectError(ErrorCode::kBadFile, {"h.weight", "F16"}, [&] {
    checkpoint->Expect({"h.weight", {2, 32}});
  });
}

TEST(CheckpointColibri, DeclaredFormats) {
  const auto tensors = [] {
    return std::vector<TestTensor>{{"m.weight", "U8", {64}, std::string(64, 'x')},
                                   {"m.weight.qs", "F32", {2}, Floats({1, 1})}};
  };
  TempFolder folder;
  folder.Write("out.safetensors",
               SafetensorsBytes(tensors(), R"({"colibri.fmt":"{\"m.weight\":8}"})"));
  ExpectOpenError(folder, ErrorCode::kUnsupported, {"m.weight", "8 (FP8"});
  folder.Write("out.safetensors",
               SafetensorsBytes(tensors(), R"({"colibri.fmt":"{\"m.weight\":1}"})"));
  EXPECT_NO_THROW(Checkpoint::Open(folder.path())->Expect({"m.weight", {2, 32}}));
  folder.Write("out.safetensors",
               SafetensorsBytes(tensors(), R"({"colibri.fmt":"{\"m.weight\":4}"})"));
  ExpectError(ErrorCode::kBadFile, {"m.weight", "format 4"}, [&] {
    Checkpoint::Open(folder.path())->Expect({"m.weight", {2, 32}});
  });
}

TEST(CheckpointColibri, LargeScalesAreCheckedAsTheyAreRead) {
  TempFolder folder;
  constexpr int64_t kRows = 70000;  // 273 KiB of scales
  std::vector<float> scales(size_t(kRows), 1.0f);
  scales[66000] = kNan;
  folder.Write("out.safetensors",
               SafetensorsBytes({{"m.weight", "U8", {kRows * 2}, std::string(kRows * 2, '\1')},
                                 {"m.weight.qs", "F32", {kRows}, Floats(scales)}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  checkpoint->Expect({"m.weight", {kRows, 2}});
  std::vector<float> out(size_t(kRows * 2));
  checkpoint->ReadRows("m.weight", 0, 66000, out.data());
  ExpectError(ErrorCode::kBadFile, {"m.weight.qs", "66000"},
              [&] { checkpoint->ReadRows("m.weight", 65990, 20, out.data()); });
}

// --- the demo checkpoint

TEST(CheckpointDemo, OpensAndReadsEveryTensor) {
  const std::filesystem::path demo = HILLSTAR_DEMO_CHECKPOINT;
  if (demo.empty()) GTEST_SKIP() << "HILLSTAR_DEMO_CHECKPOINT is not set";
  const auto checkpoint = Checkpoint::Open(demo / "checkpoint");
  EXPECT_EQ(checkpoint->List().size(), 699u);
  uint64_t num_bytes = 0;
  std::vector<float> out;
  std::map<std::string, int> encodings;
  for (const CheckpointTensor& tensor : checkpoint->List()) {
    checkpoint->Expect({tensor.name, tensor.shape});
    const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
    out.resize(size_t(rows * tensor.shape.back()));
    checkpoint->ReadRows(tensor.name, 0, rows, out.data());
    num_bytes += tensor.stored_bytes;
    ++encodings[tensor.encoding];
  }
  EXPECT_EQ(num_bytes, 99567544u - 8 - 81968);  // all of the file but its header
  EXPECT_EQ(encodings["F32"], 6);               // the router biases
  EXPECT_EQ(encodings["BF16"], 693);
  EXPECT_NE(checkpoint->SideFile("config.json").find("glm_moe_dsa"), std::string::npos);
}

}  // namespace
}  // namespace hillstar
