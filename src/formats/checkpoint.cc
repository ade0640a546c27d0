#include "formats/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <new>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/check.h"
#include "core/log.h"
#include "formats/checkpoint_folder.h"
#include "formats/checkpoint_index.h"
#include "formats/colibri_layout.h"
#include "formats/hf_decode.h"
#include "formats/json_scan.h"
#include "formats/safetensors.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// Small enough for a chunk and its floats to stay in a core's L2 between reading and converting.
constexpr int64_t kChunkBytes = int64_t{256} << 10;
// Scales up to this size are checked by Expect, larger ones as they are read: FP8's largest matrix
// of GLM-5.2 has 227 KiB of scales, while colibri's grouped scales make 46 GB of a container.
constexpr uint64_t kScaleBytesCheckedEarly = uint64_t{256} << 10;

constexpr std::string_view kFp8ScaleSuffix = "_scale_inv";
constexpr std::string_view kColibriScaleSuffix = ".qs";

[[noreturn]] void Fail(const std::string& message) { throw Error(ErrorCode::kBadFile, message); }

enum class Encoding { kUnserved, kBf16, kF16, kF32, kFp8, kColibri };

// How the rows of one matrix lie in its file.
struct StoredMatrix {
  std::string name;  // the standard one
  TensorPlace values;
  TensorPlace scales;  // empty for plain values
  Encoding encoding = Encoding::kUnserved;
  bool is_expected = false;
  // From here on known after Expect.
  int64_t rows = 0;
  int64_t cols = 0;
  uint64_t row_bytes = 0;
  int64_t rows_per_scale = 1;  // kFp8Block for FP8
  int64_t scales_per_row = 0;
  ColibriLayout colibri;

  std::string QuotedName() const {
    return fmt::format("{} in {}", Quoted(values.tensor->name), Quoted(values.shard->name()));
  }
};

bool IsScaleName(std::string_view name) {
  return name.ends_with(kFp8ScaleSuffix) || name.ends_with(kColibriScaleSuffix);
}

// What a tensor tells of an encoding that is not served; empty if it tells nothing.
std::string ForeignQuantisation(const SafetensorsTensor& tensor,
                                const std::unordered_map<std::string_view, TensorPlace>& by_name) {
  const std::string& name = tensor.name;
  if (tensor.dtype == Dtype::kF4) return "FP4 (NVFP4 or MXFP4)";
  if (name.ends_with("weight_packed")) return "packed 4-bit integers or NVFP4";
  if (name.ends_with(".qweight")) return "GPTQ or AWQ";
  if (tensor.dtype == Dtype::kU8 && !by_name.contains(name + std::string(kColibriScaleSuffix)) &&
      (by_name.contains(name + "_scale") || by_name.contains(name + "_scale_2"))) {
    return "NVFP4 or MXFP4";
  }
  return "";
}

Encoding EncodingOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return Encoding::kBf16;
    case Dtype::kF16: return Encoding::kF16;
    case Dtype::kF32: return Encoding::kF32;
    case Dtype::kF8E4M3: return Encoding::kFp8;
    case Dtype::kU8: return Encoding::kColibri;
    default: return Encoding::kUnserved;
  }
}

class ShardedCheckpoint : public Checkpoint {
 public:
  explicit ShardedCheckpoint(const std::filesystem::path& folder) : folder_(folder) {
    OpenShards(ListShards(folder));
    std::unordered_map<std::string, std::string> index;
    if (const std::string text = SideFile("model.safetensors.index.json"); !text.empty()) {
      index = ParseShardIndex(text);
    }
    AddMatrices(MergeShards(shards_, index));
  }

  std::string SideFile(std::string_view file_name) const override {
    return ReadSideFile(folder_, file_name);
  }
  std::vector<CheckpointTensor> List() const override;
  bool Has(std::string_view name) const override { return Find(name) != nullptr; }
  void Expect(const ExpectedShape& tensor) override;
  void ReadRows(std::string_view name, int64_t first_row, int64_t num_rows,
                float* out) const override;

 private:
  void OpenShards(const std::vector<std::filesystem::path>& paths);
  void AddMatrices(const std::vector<TensorPlace>& places);
  void AddColibriTags();

  const StoredMatrix* Find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &matrices_[found->second];
  }
  void ExpectPlain(StoredMatrix& matrix, const std::vector<int64_t>& shape) const;
  void ExpectFp8(StoredMatrix& matrix, const std::vector<int64_t>& shape) const;
  void ExpectColibri(StoredMatrix& matrix, const std::vector<int64_t>& shape);
  void CheckScales(const StoredMatrix& matrix) const;
  // Scale rows [first, first + count), each finite and positive.
  void ReadScales(const StoredMatrix& matrix, int64_t first, int64_t count, float* out) const;
  void ReadChunk(const StoredMatrix& matrix, int64_t first_row, int64_t num_rows, uint8_t* bytes,
                 std::vector<float>& scales, float* out) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::vector<StoredMatrix> matrices_;
  std::unordered_map<std::string_view, size_t> by_name_;  // standard name -> matrices_
  std::unordered_map<std::string, int> colibri_tags_;     // stored name -> format
  bool warned_of_int4_rows_ = false;
};

void ShardedCheckpoint::OpenShards(const std::vector<std::filesystem::path>& paths) {
  for (const std::filesystem::path& path : paths) {
    shards_.push_back(std::make_unique<SafetensorsFile>(path));
    for (const auto& [key, value] : shards_.back()->header().colibri_metadata) {
      if (key == "colibri.fmt") colibri_tags_.merge(ParseColibriFormats(value));
    }
  }
}

void ShardedCheckpoint::AddMatrices(const std::vector<TensorPlace>& places) {
  std::unordered_map<std::string_view, TensorPlace> stored;
  for (const TensorPlace& place : places) stored.emplace(place.tensor->name, place);
  const NamePrefix prefix = FindNamePrefix(places);
  for (const TensorPlace& place : places) {
    const std::string& name = place.tensor->name;
    if (const std::string what = ForeignQuantisation(*place.tensor, stored); !what.empty()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("Tensor {} in {} is stored as {}. BF16, F16, F32, FP8 with 128 x 128 "
                              "block scales, and colibri's formats 1 to 5 are read.",
                              Quoted(name), Quoted(place.shard->name()), what));
    }
    if (IsScaleName(name)) continue;
    StoredMatrix matrix;
    matrix.name = prefix.Standard(name);
    matrix.values = place;
    matrix.encoding = EncodingOf(place.tensor->dtype);
    const bool is_colibri = matrix.encoding == Encoding::kColibri;
    const auto scales =
        stored.find(name + std::string(is_colibri ? kColibriScaleSuffix : kFp8ScaleSuffix));
    if (scales != stored.end()) matrix.scales = scales->second;
    matrices_.push_back(std::move(matrix));
  }
  // Only now: the views point into the elements.
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const auto [other, is_new] = by_name_.emplace(matrices_[i].name, i);
    if (!is_new) {
      Fail(fmt::format("Tensors {} and {} both stand for {}.",
                       matrices_[other->second].QuotedName(), matrices_[i].QuotedName(),
                       Quoted(matrices_[i].name)));
    }
  }
}

std::vector<CheckpointTensor> ShardedCheckpoint::List() const {
  std::vector<CheckpointTensor> list;
  for (const StoredMatrix& matrix : matrices_) {
    CheckpointTensor tensor;
    tensor.name = matrix.name;
    tensor.shape = matrix.values.tensor->shape;
    tensor.encoding = DtypeName(matrix.values.tensor->dtype);
    tensor.stored_bytes = matrix.values.tensor->num_bytes();
    if (matrix.scales.tensor) tensor.stored_bytes += matrix.scales.tensor->num_bytes();
    if (matrix.encoding == Encoding::kColibri && matrix.scales.tensor) {
      tensor.encoding = matrix.is_expected ? ColibriEncodingName(matrix.colibri) : "colibri";
      if (matrix.is_expected) tensor.shape = {matrix.rows, matrix.cols};
    }
    list.push_back(std::move(tensor));
  }
  return list;
}

void ShardedCheckpoint::Expect(const ExpectedShape& tensor) {
  const size_t rank = tensor.shape.size();
  CHECK(rank == 1 || rank == 2);
  for (const int64_t dim : tensor.shape) CHECK(dim > 0);
  const auto found = by_name_.find(tensor.name);
  if (found == by_name_.end()) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("The checkpoint in {} lacks the tensor {} {}.", folder_.string(),
                            Quoted(tensor.name), ShapeText(tensor.shape)));
  }
  StoredMatrix& matrix = matrices_[found->second];
  matrix.is_expected = false;
  matrix.rows = rank == 1 ? 1 : tensor.shape[0];
  matrix.cols = tensor.shape.back();
  switch (matrix.encoding) {
    case Encoding::kUnserved:
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("Tensor {} has the dtype {}, which is not read for weights.",
                              matrix.QuotedName(), DtypeName(matrix.values.tensor->dtype)));
    case Encoding::kFp8: ExpectFp8(matrix, tensor.shape); break;
    case Encoding::kColibri: ExpectColibri(matrix, tensor.shape); break;
    default: ExpectPlain(matrix, tensor.shape); break;
  }
  matrix.is_expected = true;
}

void ShardedCheckpoint::ExpectPlain(StoredMatrix& matrix, const std::vector<int64_t>& shape) const {
  const SafetensorsTensor& values = *matrix.values.tensor;
  if (values.shape != shape) {
    Fail(fmt::format("Tensor {} is {}, but the configuration makes it {}.", matrix.QuotedName(),
                     ShapeText(values.shape), ShapeText(shape)));
  }
  if (matrix.scales.tensor) {
    Fail(fmt::format("Tensor {} is plain {}, but has block scales, {}.", matrix.QuotedName(),
                     DtypeName(values.dtype), Quoted(matrix.scales.tensor->name)));
  }
  matrix.row_bytes = uint64_t(matrix.cols) * uint64_t(DtypeBits(values.dtype) / 8);
}

void ShardedCheckpoint::ExpectFp8(StoredMatrix& matrix, const std::vector<int64_t>& shape) const {
  const SafetensorsTensor& values = *matrix.values.tensor;
  if (values.shape != shape) {
    Fail(fmt::format("Tensor {} is {}, but the configuration makes it {}.", matrix.QuotedName(),
                     ShapeText(values.shape), ShapeText(shape)));
  }
  if (!matrix.scales.tensor) {
    Fail(fmt::format("Tensor {} is FP8, but its block scales {} are missing.", matrix.QuotedName(),
                     Quoted(values.name + std::string(kFp8ScaleSuffix))));
  }
  const std::vector<int64_t> scale_shape = {(matrix.rows + kFp8Block - 1) / kFp8Block,
                                            (matrix.cols + kFp8Block - 1) / kFp8Block};
  const SafetensorsTensor& scales = *matrix.scales.tensor;
  if (shape.size() != 2 || scales.shape != scale_shape || scales.dtype != Dtype::kF32) {
    Fail(fmt::format(
        "The block scales {} of tensor {} {} are {} {}; F32 {} is right for blocks of "
        "{} x {}.",
        Quoted(scales.name), matrix.QuotedName(), ShapeText(shape), DtypeName(scales.dtype),
        ShapeText(scales.shape), ShapeText(scale_shape), kFp8Block, kFp8Block));
  }
  matrix.row_bytes = uint64_t(matrix.cols);
  matrix.rows_per_scale = kFp8Block;
  matrix.scales_per_row = scale_shape[1];
  CheckScales(matrix);
}

void ShardedCheckpoint::ExpectColibri(StoredMatrix& matrix, const std::vector<int64_t>& shape) {
  const SafetensorsTensor& values = *matrix.values.tensor;
  if (!matrix.scales.tensor) {
    Fail(fmt::format("Tensor {} is U8, but its scales {} are missing.", matrix.QuotedName(),
                     Quoted(values.name + std::string(kColibriScaleSuffix))));
  }
  if (shape.size() != 2 || matrix.scales.tensor->dtype != Dtype::kF32 ||
      (values.shape.size() > 1 && values.shape[0] != matrix.rows)) {
    Fail(fmt::format("Tensor {} {} of U8 with {} scales cannot hold a matrix {} of colibri.",
                     matrix.QuotedName(), ShapeText(values.shape),
                     DtypeName(matrix.scales.tensor->dtype), ShapeText(shape)));
  }
  matrix.colibri = FindColibriLayout(values.name, matrix.rows, matrix.cols, values.num_bytes(),
                                     matrix.scales.tensor->num_bytes());
  const auto tag = colibri_tags_.find(values.name);
  if (tag != colibri_tags_.end() && tag->second != int(matrix.colibri.format)) {
    Fail(
        fmt::format("Tensor {} is declared as colibri's format {}, but its size is that of format "
                    "{} ({}).",
                    matrix.QuotedName(), tag->second, int(matrix.colibri.format),
                    ColibriEncodingName(matrix.colibri)));
  }
  if (matrix.colibri.format == ColibriFormat::kInt4Row && !warned_of_int4_rows_) {
    warned_of_int4_rows_ = true;
    LogWarn(
        fmt::format("Tensor {} and perhaps others hold int4 with one scale a row, which costs "
                    "quality (8 to 9 points in multiple-choice tests); containers with groups "
                    "of 64 lose 2 to 3.",
                    Quoted(values.name)));
  }
  matrix.row_bytes = uint64_t(matrix.colibri.row_bytes);
  matrix.scales_per_row = matrix.colibri.scales_per_row;
  CheckScales(matrix);
}

void ShardedCheckpoint::CheckScales(const StoredMatrix& matrix) const {
  const uint64_t num_bytes = matrix.scales.tensor->num_bytes();
  if (num_bytes > kScaleBytesCheckedEarly) return;
  std::vector<float> scales(num_bytes / sizeof(float));
  ReadScales(matrix, 0, int64_t(scales.size()) / matrix.scales_per_row, scales.data());
}

void ShardedCheckpoint::ReadScales(const StoredMatrix& matrix, int64_t first, int64_t count,
                                   float* out) const {
  const uint64_t row_bytes = uint64_t(matrix.scales_per_row) * sizeof(float);
  matrix.scales.shard->Read(*matrix.scales.tensor, uint64_t(first) * row_bytes,
                            uint64_t(count) * row_bytes, out);
  constexpr uint32_t kInfinityBits = 0x7f800000;
  for (int64_t i = 0; i < count * matrix.scales_per_row; ++i) {
    // Positive and finite: the bits lie between those of 0 and infinity.
    const uint32_t bits = std::bit_cast<uint32_t>(out[i]);
    if (bits == 0 || bits >= kInfinityBits) {
      Fail(
          fmt::format("The scale {} in {} has the value {} at [{}, {}]; scales are finite and "
                      "positive.",
                      Quoted(matrix.scales.tensor->name), Quoted(matrix.scales.shard->name()),
                      out[i], first + i / matrix.scales_per_row, i % matrix.scales_per_row));
    }
  }
}

void ShardedCheckpoint::ReadRows(std::string_view name, int64_t first_row, int64_t num_rows,
                                 float* out) const {
  const StoredMatrix* matrix = Find(name);
  CHECK(matrix != nullptr && matrix->is_expected);
  CHECK(first_row >= 0 && num_rows >= 0 && num_rows <= matrix->rows - first_row);
  const int64_t chunk_rows = std::max<int64_t>(1, kChunkBytes / int64_t(matrix->row_bytes));
  const int64_t most_rows = std::min(chunk_rows, num_rows);
  const auto bytes =
      std::make_unique_for_overwrite<uint8_t[]>(size_t(most_rows) * size_t(matrix->row_bytes));
  std::vector<float> scales;
  for (int64_t done = 0; done < num_rows; done += chunk_rows) {
    const int64_t first = first_row + done;
    const int64_t count = std::min(chunk_rows, num_rows - done);
    float* const values = out + done * matrix->cols;
    ReadChunk(*matrix, first, count, bytes.get(), scales, values);
    const size_t num_values = size_t(count * matrix->cols);
    if (const size_t bad = FindNonFinite(values, num_values); bad != num_values) {
      Fail(fmt::format("Tensor {} is not finite at row {}, column {}.", matrix->QuotedName(),
                       first + int64_t(bad) / matrix->cols, int64_t(bad) % matrix->cols));
    }
  }
}

void ShardedCheckpoint::ReadChunk(const StoredMatrix& matrix, int64_t first_row, int64_t num_rows,
                                  uint8_t* bytes, std::vector<float>& scales, float* out) const {
  const uint64_t num_bytes = uint64_t(num_rows) * matrix.row_bytes;
  matrix.values.shard->Read(*matrix.values.tensor, uint64_t(first_row) * matrix.row_bytes,
                            num_bytes, bytes);
  const size_t num_values = size_t(num_rows * matrix.cols);
  switch (matrix.encoding) {
    case Encoding::kBf16: DecodeBf16(bytes, num_values, out); return;
    case Encoding::kF16: DecodeF16(bytes, num_values, out); return;
    case Encoding::kF32: std::copy_n(bytes, num_bytes, reinterpret_cast<uint8_t*>(out)); return;
    default: break;
  }
  const int64_t first_scale = first_row / matrix.rows_per_scale;
  const int64_t last_scale = (first_row + num_rows - 1) / matrix.rows_per_scale;
  scales.resize(size_t((last_scale - first_scale + 1) * matrix.scales_per_row));
  ReadScales(matrix, first_scale, last_scale - first_scale + 1, scales.data());
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t scale_row = (first_row + r) / matrix.rows_per_scale - first_scale;
    const float* const row_scales = scales.data() + scale_row * matrix.scales_per_row;
    const uint8_t* const row = bytes + uint64_t(r) * matrix.row_bytes;
    float* const row_out = out + r * matrix.cols;
    if (matrix.encoding == Encoding::kColibri) {
      DecodeColibriRow(matrix.colibri, row, row_scales, row_out);
      continue;
    }
    for (int64_t col = 0; col < matrix.cols; col += kFp8Block) {
      const int64_t count = std::min(kFp8Block, matrix.cols - col);
      DecodeFp8(row + col, size_t(count), row_scales[col / kFp8Block], row_out + col);
    }
  }
}

}  // namespace

std::unique_ptr<Checkpoint> Checkpoint::Open(const std::filesystem::path& folder) {
  try {
    return std::make_unique<ShardedCheckpoint>(folder);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kBudget,
                "There is not enough memory to read the headers of the shards.");
  }
}

}  // namespace hillstar
