#include "kv/colibri_kv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formats/safetensors_test_files.h"

namespace hillstar {
namespace {

constexpr ColibriKvShape kShape = {3, 5, 4, 2, 2, 100};

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

std::string Header(char version, const ColibriKvShape& shape, int32_t num_records, int32_t codec) {
  std::string bytes = "COLIKV";
  bytes += version;
  bytes += '\0';
  for (const int32_t value : {shape.num_layers, shape.latent, shape.rope, shape.index_head_dim,
                              shape.num_index_layers, shape.vocab, num_records, codec}) {
    Put(&bytes, value);
  }
  return bytes;
}

// A value of its own for every place, exact in float.
float Value(int64_t record, int layer, int kind, int i) {
  return float(record * 1000 + layer * 100 + kind * 10 + i) / 16.0f * (i % 2 ? -1.0f : 1.0f);
}

int32_t Token(int64_t record) { return int32_t(record * 7 % 100); }

std::string RecordOfVersion1(int64_t record, const ColibriKvShape& shape = kShape) {
  std::string bytes;
  Put(&bytes, Token(record));
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int i = 0; i < shape.latent; ++i) Put(&bytes, Value(record, layer, 0, i));
    for (int i = 0; i < shape.rope; ++i) Put(&bytes, Value(record, layer, 1, i));
  }
  for (int layer = 0; layer < shape.num_index_layers; ++layer) {
    for (int i = 0; i < shape.index_head_dim; ++i) Put(&bytes, Value(record, layer, 2, i));
  }
  return bytes;
}

uint8_t Code(int64_t record, int layer, int kind, int i) {
  const auto code = uint8_t(record * 61 + layer * 17 + kind * 29 + i * 7);
  return (code & 0x7f) == 0x7f ? uint8_t{0x7e} : code;
}
float Scale(int64_t record, int layer, int kind) {
  return std::ldexp(1.0f + float(kind) / 4.0f, int(record % 5) - layer);
}

std::string RecordOfVersion2(int64_t record, const ColibriKvShape& shape = kShape) {
  std::string bytes;
  Put(&bytes, Token(record));
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int i = 0; i < shape.latent; ++i) Put(&bytes, Code(record, layer, 0, i));
    Put(&bytes, Scale(record, layer, 0));
    for (int i = 0; i < shape.rope; ++i) Put(&bytes, Code(record, layer, 1, i));
    Put(&bytes, Scale(record, layer, 1));
  }
  for (int layer = 0; layer < shape.num_index_layers; ++layer) {
    for (int i = 0; i < shape.index_head_dim; ++i) Put(&bytes, Value(record, layer, 2, i));
  }
  return bytes;
}

// e4m3 by its definition: sign, 4 bits of exponent with bias 7, 3 of mantissa, no infinities.
float E4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                        : std::ldexp(1.0f + float(mantissa) / 8.0f, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

class ColibriKvTest : public testing::Test {
 protected:
  ColibriKvFile Opened(const std::string& bytes, const ColibriKvShape& shape = kShape) const {
    // A name of its own: rewriting a file makes some file systems wait for the drive.
    const std::string name = fmt::format("{}.coli_kv", num_files_++);
    folder_.Write(name, bytes);
    return ColibriKvFile::Open(folder_.path() / name, shape);
  }

  TempFolder folder_;
  mutable int num_files_ = 0;
};

TEST_F(ColibriKvTest, Version1GivesItsFloats) {
  std::string bytes = Header('1', kShape, 4, 0);
  for (int64_t r = 0; r < 4; ++r) bytes += RecordOfVersion1(r);
  ColibriKvFile file = Opened(bytes);
  EXPECT_EQ(file.version(), 1);
  ASSERT_EQ(file.num_tokens(), 4);
  ColibriKvRecord record;
  for (const int64_t r : {3, 0, 2, 1}) {
    ASSERT_TRUE(file.ReadRecord(r, &record));
    EXPECT_EQ(record.token, Token(r));
    for (int layer = 0; layer < 3; ++layer) {
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(record.latents[size_t(layer * 5 + i)], Value(r, layer, 0, i));
      }
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(record.ropes[size_t(layer * 4 + i)], Value(r, layer, 1, i));
      }
    }
    for (int layer = 0; layer < 2; ++layer) {
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(record.index_keys[size_t(layer * 2 + i)], Value(r, layer, 2, i));
      }
    }
    EXPECT_TRUE(record.latent_codes.empty());
    EXPECT_TRUE(record.rope_scales.empty());
  }
  EXPECT_TRUE(file.findings().empty());
}

TEST_F(ColibriKvTest, Version2GivesCodesAndTheirValues) {
  std::string bytes = Header('2', kShape, 40, 1);
  for (int64_t r = 0; r < 40; ++r) bytes += RecordOfVersion2(r);
  ColibriKvFile file = Opened(bytes);
  EXPECT_EQ(file.version(), 2);
  ASSERT_EQ(file.num_tokens(), 40);
  ColibriKvRecord record;
  for (int64_t r = 0; r < 40; ++r) {
    ASSERT_TRUE(file.ReadRecord(r, &record));
    EXPECT_EQ(record.token, Token(r));
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(record.latent_scales[size_t(layer)], Scale(r, layer, 0));
      EXPECT_EQ(record.rope_scales[size_t(layer)], Scale(r, layer, 1));
      for (int i = 0; i < 5; ++i) {
        const uint8_t code = Code(r, layer, 0, i);
        EXPECT_EQ(record.latent_codes[size_t(layer * 5 + i)], code);
        EXPECT_EQ(record.latents[size_t(layer * 5 + i)], E4m3(code) * Scale(r, layer, 0));
      }
      for (int i = 0; i < 4; ++i) {
        const uint8_t code = Code(r, layer, 1, i);
        EXPECT_EQ(record.rope_codes[size_t(layer * 4 + i)], code);
        EXPECT_EQ(record.ropes[size_t(layer * 4 + i)], E4m3(code) * Scale(r, layer, 1));
      }
    }
    EXPECT_EQ(record.index_keys[3], Value(r, 1, 2, 1));
  }
  EXPECT_TRUE(file.findings().empty());
}

TEST_F(ColibriKvTest, ARecordOfTheGlmHasItsSize) {
  // 4 + 78 * 2304 + 21 * 512, see the format's description.
  const ColibriKvShape glm = {78, 512, 64, 128, 21, 154880};
  ColibriKvFile file = Opened(Header('1', glm, 2, 0) + std::string(2 * 190468, '\0'), glm);
  EXPECT_EQ(file.num_tokens(), 2);
  EXPECT_TRUE(file.findings().empty());
  const ColibriKvShape without_keys = {78, 512, 64, 0, 0, 154880};
  EXPECT_EQ(Opened(Header('1', without_keys, 9, 0) + std::string(9 * 179716, '\0'), without_keys)
                .num_tokens(),
            9);
}

TEST_F(ColibriKvTest, NanCodesAreZero) {
  std::string record2 = RecordOfVersion2(1);
  record2[4 + 2] = char(0x7f);
  record2[4 + 5 + 4 + 3] = char(0xff);
  ColibriKvFile file =
      Opened(Header('2', kShape, 3, 1) + RecordOfVersion2(0) + record2 + RecordOfVersion2(2));
  ColibriKvRecord record;
  ASSERT_TRUE(file.ReadRecord(0, &record));
  EXPECT_TRUE(file.findings().empty());
  for (int times = 0; times < 2; ++times) {
    ASSERT_TRUE(file.ReadRecord(1, &record));
    EXPECT_EQ(record.latents[2], 0.0f);
    EXPECT_EQ(record.latent_codes[2], 0);
    EXPECT_EQ(record.ropes[3], 0.0f);
    EXPECT_EQ(record.rope_codes[3], 0);
    EXPECT_EQ(record.latent_codes[1], Code(1, 0, 0, 1));
  }
  ASSERT_EQ(file.findings().size(), 1u);
  EXPECT_NE(file.findings()[0].find("2 codes that are no number at token 1"), std::string::npos);
  EXPECT_EQ(file.num_tokens(), 3);
}

TEST_F(ColibriKvTest, OtherSizesAreNamed) {
  const std::string bytes = Header('1', kShape, 0, 0);
  EXPECT_EQ(Opened(bytes).num_tokens(), 0);
  struct Case {
    int32_t ColibriKvShape::*field;
    const char* words;
  };
  const Case cases[] = {
      {&ColibriKvShape::num_layers, "3 layers; this one has 77"},
      {&ColibriKvShape::latent, "5 values a latent; this one has 77"},
      {&ColibriKvShape::rope, "4 values a rope part; this one has 77"},
      {&ColibriKvShape::index_head_dim, "2 values an index key; this one has 77"},
      {&ColibriKvShape::num_index_layers, "2 index layers; this one has 77"},
      {&ColibriKvShape::vocab, "100 tokens in the vocabulary; this one has 77"},
  };
  for (const Case& c : cases) {
    ColibriKvShape other = kShape;
    other.*c.field = 77;
    ExpectError(ErrorCode::kUnsupported, {".coli_kv", c.words}, [&] { Opened(bytes, other); });
  }
}

TEST_F(ColibriKvTest, WhatIsNoSuchFileIsRefused) {
  ExpectError(ErrorCode::kNotFound, {"absent"},
              [&] { ColibriKvFile::Open(folder_.path() / "absent", kShape); });
  ExpectError(ErrorCode::kBadFile, {"not a saved conversation"}, [&] { Opened(""); });
  ExpectError(ErrorCode::kBadFile, {"not a saved conversation"},
              [&] { Opened("COLIKW1" + std::string(100, '\0')); });
  ExpectError(ErrorCode::kBadFile, {"not a saved conversation"},
              [&] { Opened("COLIKV12" + std::string(100, '\0')); });
  ExpectError(ErrorCode::kBadFile, {"39 bytes", "header of 40"},
              [&] { Opened(Header('1', kShape, 0, 0).substr(0, 39)); });
  ExpectError(ErrorCode::kUnsupported, {"version 3", "COLIKV3", "1 and 2"},
              [&] { Opened(Header('3', kShape, 0, 0x304)); });
  ExpectError(ErrorCode::kBadFile, {"-1 records"}, [&] { Opened(Header('1', kShape, -1, 0)); });
  ExpectError(ErrorCode::kBadFile, {"codec 1"}, [&] { Opened(Header('1', kShape, 0, 1)); });
  ExpectError(ErrorCode::kBadFile, {"codec 0"}, [&] { Opened(Header('2', kShape, 0, 0)); });
}

TEST_F(ColibriKvTest, EveryPrefixGivesItsWholeRecords) {
  std::string bytes = Header('1', kShape, 3, 0);
  for (int64_t r = 0; r < 3; ++r) bytes += RecordOfVersion1(r);
  const size_t record_bytes = RecordOfVersion1(0).size();
  for (size_t length = 40; length <= bytes.size(); ++length) {
    ColibriKvFile file = Opened(bytes.substr(0, length));
    const int64_t whole = int64_t((length - 40) / record_bytes);
    ASSERT_EQ(file.num_tokens(), whole);
    ASSERT_EQ(file.findings().size(), whole < 3 ? 1u : 0u);
    ColibriKvRecord record;
    for (int64_t r = 0; r < whole; ++r) ASSERT_TRUE(file.ReadRecord(r, &record));
    if (whole == 3) continue;
    EXPECT_NE(file.findings()[0].find(fmt::format("of its 3 tokens the first {} are", whole)),
              std::string::npos);
  }
  // What lies behind the records that the header counts was cut off by the predecessor.
  ColibriKvFile file = Opened(Header('1', kShape, 1, 0) + bytes.substr(40));
  EXPECT_EQ(file.num_tokens(), 1);
  EXPECT_TRUE(file.findings().empty());
  ColibriKvFile promising = Opened(Header('1', kShape, 0x7fffffff, 0) + bytes.substr(40));
  EXPECT_EQ(promising.num_tokens(), 3);
}

TEST_F(ColibriKvTest, ARecordThatIsNotFiniteEndsTheFile) {
  const size_t record_bytes = RecordOfVersion1(0).size();
  const float bad_values[] = {std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN(),
                              -std::numeric_limits<float>::infinity()};
  std::string whole = Header('1', kShape, 3, 0);
  for (int64_t r = 0; r < 3; ++r) whole += RecordOfVersion1(r);
  for (size_t at = 4; at < record_bytes; at += 4) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + 40 + record_bytes + at, &bad_values[at / 4 % 3], 4);
    ColibriKvFile file = Opened(bytes);
    ColibriKvRecord record;
    ASSERT_TRUE(file.ReadRecord(0, &record));
    ASSERT_FALSE(file.ReadRecord(1, &record)) << at;
    ASSERT_EQ(file.num_tokens(), 1);
    ASSERT_EQ(file.findings().size(), 1u);
    const size_t value = at / 4 - 1;
    const std::string where = value < 27 ? fmt::format("in layer {} at token 1", value / 9)
                                         : fmt::format("in index layer {}", (value - 27) / 2);
    EXPECT_NE(file.findings()[0].find(where), std::string::npos) << file.findings()[0];
    EXPECT_NE(file.findings()[0].find("the first 1 of its 3"), std::string::npos);
  }
}

TEST_F(ColibriKvTest, ABadScaleEndsTheFile) {
  for (const float scale : {std::numeric_limits<float>::infinity(), -1.0f, 1e36f,
                            std::numeric_limits<float>::quiet_NaN()}) {
    std::string record2 = RecordOfVersion2(0);
    // The second layer's rope scale.
    const size_t at = 4 + (5 + 4 + 4 + 4) + (5 + 4 + 4);
    record2[at - 1] = char(0x7e);
    std::memcpy(record2.data() + at, &scale, 4);
    ColibriKvFile file = Opened(Header('2', kShape, 1, 1) + record2);
    ColibriKvRecord record;
    EXPECT_FALSE(file.ReadRecord(0, &record)) << scale;
    EXPECT_EQ(file.num_tokens(), 0);
    // Zero codes do not hide it.
    std::memset(record2.data() + at - 4, 0, 4);
    ColibriKvFile zeros = Opened(Header('2', kShape, 1, 1) + record2);
    EXPECT_FALSE(zeros.ReadRecord(0, &record)) << scale;
  }
}

TEST_F(ColibriKvTest, ATokenOutsideTheVocabularyEndsTheFile) {
  for (const int32_t token : {-1, 100, 1 << 30}) {
    std::string bad = RecordOfVersion1(1);
    std::memcpy(bad.data(), &token, 4);
    ColibriKvFile file = Opened(Header('1', kShape, 2, 0) + RecordOfVersion1(0) + bad);
    ColibriKvRecord record;
    EXPECT_TRUE(file.ReadRecord(0, &record));
    EXPECT_FALSE(file.ReadRecord(1, &record));
    EXPECT_EQ(file.num_tokens(), 1);
    ASSERT_EQ(file.findings().size(), 1u);
    EXPECT_NE(file.findings()[0].find(fmt::format("token id {}", token)), std::string::npos);
  }
}

}  // namespace
}  // namespace hillstar
