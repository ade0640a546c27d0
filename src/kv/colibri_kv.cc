#include "kv/colibri_kv.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include "core/check.h"
#include "formats/hf_decode.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr size_t kMagicBytes = 8;
// {layers, latent, rope, index dim, index layers, vocabulary, records, codec}
constexpr size_t kNumHeaderInts = 8;
constexpr size_t kRecordsInt = 6, kCodecInt = 7;
constexpr uint64_t kHeaderBytes = kMagicBytes + kNumHeaderInts * sizeof(int32_t);
constexpr std::string_view kMagicStart = "COLIKV";  // then the version as a digit and a zero
constexpr int32_t kFp8Codec = 1;
constexpr uint8_t kNanCode = 0x7f;  // and with the sign, 0xff

template <typename T>
const uint8_t* Take(const uint8_t* from, size_t n, T* to) {
  if (n > 0) std::memcpy(to, from, n * sizeof(T));
  return from + n * sizeof(T);
}

// Zeroes NaN codes; returns how many there were.
size_t Mend(uint8_t* codes, size_t n) {
  size_t num_mended = 0;
  for (size_t i = 0; i < n; ++i) {
    if ((codes[i] & 0x7f) != kNanCode) continue;
    codes[i] = 0;
    ++num_mended;
  }
  return num_mended;
}

// The largest code times a larger one is infinite.
constexpr float kMaxScale = std::numeric_limits<float>::max() / 448;

}  // namespace

ColibriKvFile ColibriKvFile::Open(const std::filesystem::path& path, const ColibriKvShape& shape) {
  CHECK(shape.num_layers > 0 && shape.latent > 0 && shape.rope > 0 && shape.vocab > 0);
  CHECK(shape.index_head_dim >= 0 && shape.num_index_layers >= 0);
  ColibriKvFile file(File::OpenForReading(path), shape);
  file.ReadHeader();
  file.buffer_.resize(file.RecordBytes());
  return file;
}

uint64_t ColibriKvFile::RecordBytes() const {
  const uint64_t values = uint64_t(shape_.latent) + uint64_t(shape_.rope);
  const uint64_t layer_bytes =
      version_ == 1 ? values * sizeof(float) : values + 2 * sizeof(float);  // codes, two scales
  const uint64_t num_keys = uint64_t(shape_.num_index_layers) * uint64_t(shape_.index_head_dim);
  return sizeof(int32_t) + uint64_t(shape_.num_layers) * layer_bytes + num_keys * sizeof(float);
}

void ColibriKvFile::CompareSizes(const int32_t* header) const {
  struct Size {
    const char* what;
    int32_t model;
  };
  const Size sizes[] = {
      {"layers", shape_.num_layers},
      {"values a latent", shape_.latent},
      {"values a rope part", shape_.rope},
      {"values an index key", shape_.index_head_dim},
      {"index layers", shape_.num_index_layers},
      {"tokens in the vocabulary", shape_.vocab},
  };
  for (size_t i = 0; i < std::size(sizes); ++i) {
    if (header[i] == sizes[i].model) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} was saved by a model of {} {}; this one has {}", file_.name(),
                            header[i], sizes[i].what, sizes[i].model));
  }
}

void ColibriKvFile::ReadHeader() {
  const std::string& name = file_.name();
  const uint64_t size = file_.size();
  uint8_t bytes[kHeaderBytes] = {};
  file_.ReadAt(0, bytes, size_t(std::min(size, kHeaderBytes)));
  const std::string_view magic(reinterpret_cast<const char*>(bytes), kMagicBytes);
  const char digit = magic[kMagicStart.size()];
  if (!magic.starts_with(kMagicStart) || digit < '1' || digit > '9' || magic.back() != '\0') {
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} is not a saved conversation of colibri", name));
  }
  version_ = digit - '0';
  if (version_ > 2) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} is of version {} (COLIKV{}{}); versions 1 and 2 are read", name,
                            version_, version_, version_ == 3 ? ", compressed rows" : ""));
  }
  if (size < kHeaderBytes) {
    throw Error(ErrorCode::kBadFile, fmt::format("{} has {} bytes, less than its header of {}",
                                                 name, size, kHeaderBytes));
  }
  int32_t header[kNumHeaderInts];
  std::memcpy(header, bytes + kMagicBytes, sizeof(header));
  CompareSizes(header);
  const int32_t codec = version_ == 2 ? kFp8Codec : 0, num_records = header[kRecordsInt];
  if (header[kCodecInt] != codec || num_records < 0) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("the header of {} says codec {} and {} records; version {} has codec "
                            "{} and no fewer than 0",
                            name, header[kCodecInt], num_records, version_, codec));
  }
  const uint64_t whole = (size - kHeaderBytes) / RecordBytes();
  num_tokens_ = int64_t(std::min(whole, uint64_t(num_records)));
  if (num_tokens_ < num_records) {
    findings_.push_back(fmt::format("{} is cut off: of its {} tokens the first {} are whole", name,
                                    num_records, num_tokens_));
  }
}

bool ColibriKvFile::ReadRecord(int64_t index, ColibriKvRecord* record) {
  CHECK(index >= 0 && index < num_tokens_);
  file_.ReadAt(kHeaderBytes + uint64_t(index) * buffer_.size(), buffer_.data(), buffer_.size());
  Decode(index, record);
  return IsSound(index, *record);
}

void ColibriKvFile::Decode(int64_t index, ColibriKvRecord* record) {
  const size_t num_layers = size_t(shape_.num_layers), latent = size_t(shape_.latent),
               rope = size_t(shape_.rope);
  record->latents.resize(num_layers * latent);
  record->ropes.resize(num_layers * rope);
  record->index_keys.resize(size_t(shape_.num_index_layers) * size_t(shape_.index_head_dim));
  const size_t num_coded = version_ == 2 ? num_layers : 0;
  record->latent_codes.resize(num_coded * latent);
  record->rope_codes.resize(num_coded * rope);
  record->latent_scales.resize(num_coded);
  record->rope_scales.resize(num_coded);

  const uint8_t* at = Take(buffer_.data(), 1, &record->token);
  size_t num_mended = 0;
  // One of the two parts of a layer's row.
  const auto take = [&](size_t layer, size_t n, std::vector<float>* values,
                        std::vector<uint8_t>* codes, std::vector<float>* scales) {
    float* const out = values->data() + layer * n;
    if (version_ == 1) {
      at = Take(at, n, out);
      return;
    }
    uint8_t* const row = codes->data() + layer * n;
    at = Take(at, n, row);
    at = Take(at, 1, &(*scales)[layer]);
    num_mended += Mend(row, n);
    DecodeFp8(row, n, (*scales)[layer], out);
  };
  for (size_t layer = 0; layer < num_layers; ++layer) {
    take(layer, latent, &record->latents, &record->latent_codes, &record->latent_scales);
    take(layer, rope, &record->ropes, &record->rope_codes, &record->rope_scales);
  }
  Take(at, record->index_keys.size(), record->index_keys.data());
  if (num_mended > 0 && !has_mended_) {
    has_mended_ = true;
    findings_.push_back(
        fmt::format("{} has {} codes that are no number at token {}; they count as "
                    "0 there and wherever else",
                    file_.name(), num_mended, index));
  }
}

bool ColibriKvFile::Refuse(int64_t index, const std::string& why) {
  findings_.push_back(fmt::format("{} {} at token {}: the first {} of its {} tokens are used",
                                  file_.name(), why, index, index, num_tokens_));
  num_tokens_ = index;
  return false;
}

bool ColibriKvFile::IsSound(int64_t index, const ColibriKvRecord& record) {
  if (record.token < 0 || record.token >= shape_.vocab) {
    return Refuse(index, fmt::format("has the token id {}, outside the vocabulary of {},",
                                     record.token, shape_.vocab));
  }
  const auto first_bad = [](const std::vector<float>& values) {
    return FindNonFinite(values.data(), values.size());
  };
  const size_t latent = first_bad(record.latents), rope = first_bad(record.ropes);
  if (latent < record.latents.size() || rope < record.ropes.size()) {
    const size_t layer = std::min(latent / size_t(shape_.latent), rope / size_t(shape_.rope));
    return Refuse(index, fmt::format("has a number that is not finite in layer {}", layer));
  }
  const size_t key = first_bad(record.index_keys);
  if (key < record.index_keys.size()) {
    return Refuse(index, fmt::format("has a number that is not finite in index layer {}",
                                     key / size_t(shape_.index_head_dim)));
  }
  // A row of zero codes would hide it from the values.
  for (const auto* scales : {&record.latent_scales, &record.rope_scales}) {
    for (size_t layer = 0; layer < scales->size(); ++layer) {
      const float scale = (*scales)[layer];
      if (scale >= 0 && scale <= kMaxScale) continue;
      return Refuse(index, fmt::format("has the scale {} in layer {}", scale, layer));
    }
  }
  return true;
}

}  // namespace hillstar
