// The JSON header of a safetensors file, read by events: no document is built, so that 60,000
// tensors cost a fraction of a second.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "formats/json_scan.h"
#include "formats/safetensors.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

struct DtypeRow {
  Dtype dtype;
  const char* name;
  int bits;
};
constexpr std::array<DtypeRow, 20> kDtypes = {{
    {Dtype::kBool, "BOOL", 8},      {Dtype::kU8, "U8", 8},          {Dtype::kI8, "I8", 8},
    {Dtype::kU16, "U16", 16},       {Dtype::kI16, "I16", 16},       {Dtype::kU32, "U32", 32},
    {Dtype::kI32, "I32", 32},       {Dtype::kU64, "U64", 64},       {Dtype::kI64, "I64", 64},
    {Dtype::kF4, "F4", 4},          {Dtype::kF6E2M3, "F6_E2M3", 6}, {Dtype::kF6E3M2, "F6_E3M2", 6},
    {Dtype::kF8E4M3, "F8_E4M3", 8}, {Dtype::kF8E5M2, "F8_E5M2", 8}, {Dtype::kF8E8M0, "F8_E8M0", 8},
    {Dtype::kF16, "F16", 16},       {Dtype::kBf16, "BF16", 16},     {Dtype::kF32, "F32", 32},
    {Dtype::kF64, "F64", 64},       {Dtype::kC64, "C64", 64},
}};

[[noreturn]] void Fail(const std::string& message) { throw Error(ErrorCode::kBadFile, message); }

// Receives the events of one header; every method returns true to go on or throws.
class HeaderEvents {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit HeaderEvents(SafetensorsHeader& header) : header_(header) {}

  bool null() { return Scalar("null"); }
  bool boolean(bool) { return Scalar("a truth value"); }
  bool number_integer(number_integer_t) { return Scalar("a negative number"); }
  bool number_float(number_float_t, const string_t&) { return Scalar("a fractional number"); }
  bool binary(binary_t&) { return Scalar("binary data"); }

  bool number_unsigned(number_unsigned_t value) {
    if (place_ == Place::kShape) {
      if (tensor_.shape.size() == kMaxTensorRank) {
        Fail(fmt::format("Tensor {} has more than {} dimensions.", Quoted(tensor_.name),
                         kMaxTensorRank));
      }
      if (value > uint64_t(INT64_MAX)) {
        Fail(fmt::format("Tensor {} has a dimension of {}.", Quoted(tensor_.name), value));
      }
      tensor_.shape.push_back(int64_t(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (num_offsets_ == 2) {
        Fail(fmt::format("Tensor {} has more than two data offsets.", Quoted(tensor_.name)));
      }
      (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return Scalar("a number");
  }

  bool string(string_t& value) {
    if (place_ == Place::kMetadata) {
      if (skip_depth_ == 1 && key_.rfind("colibri.", 0) == 0) {
        header_.colibri_metadata.emplace_back(key_, std::move(value));
      }
      return true;
    }
    if (place_ == Place::kTensor && field_ == Field::kDtype) {
      SetDtype(value);
      field_ = Field::kNone;
      return true;
    }
    return Scalar("a text");
  }

  bool start_object(std::size_t) {
    switch (place_) {
      case Place::kDocument: place_ = Place::kHeader; return true;
      case Place::kMetadata: ++skip_depth_; return true;
      case Place::kHeader:
        if (metadata_next_) return StartMetadata();
        place_ = Place::kTensor;
        tensor_ = {};
        tensor_.name = std::move(key_);
        seen_ = {};
        return true;
      default: return Scalar("an object");
    }
  }

  bool end_object() {
    if (place_ == Place::kMetadata) return EndMetadata();
    if (place_ == Place::kTensor) {
      FinishTensor();
      place_ = Place::kHeader;
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ == Place::kMetadata) {
      ++skip_depth_;
      return true;
    }
    if (place_ == Place::kHeader && metadata_next_) return StartMetadata();
    if (place_ == Place::kTensor && field_ == Field::kShape) {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && field_ == Field::kOffsets) {
      place_ = Place::kOffsets;
      num_offsets_ = 0;
      return true;
    }
    return Scalar("a list");
  }

  bool end_array() {
    if (place_ == Place::kMetadata) return EndMetadata();
    if (place_ == Place::kOffsets && num_offsets_ != 2) {
      Fail(fmt::format("Tensor {} has {} data offsets instead of two.", Quoted(tensor_.name),
                       num_offsets_));
    }
    place_ = Place::kTensor;
    field_ = Field::kNone;
    return true;
  }

  bool key(string_t& value) {
    if (place_ == Place::kTensor) {
      SetField(value);
      return true;
    }
    key_ = std::move(value);
    if (place_ == Place::kHeader) {
      metadata_next_ = key_ == "__metadata__";
      if (metadata_next_ && std::exchange(had_metadata_, true)) {
        Fail("The header has __metadata__ twice.");
      }
      if (key_.size() > kMaxTensorNameBytes) {
        Fail(fmt::format("The tensor name {} is longer than {} bytes.", Quoted(key_),
                         kMaxTensorNameBytes));
      }
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    const bool range = dynamic_cast<const nlohmann::json::out_of_range*>(&error) != nullptr;
    Fail(fmt::format("The header is not valid JSON: {} at byte {}.",
                     range ? "a number out of range" : "a fault", position));
  }

 private:
  enum class Place { kDocument, kHeader, kMetadata, kTensor, kShape, kOffsets };
  enum class Field { kDtype, kShape, kOffsets, kNone };

  // A value that is no tensor's field: fine inside or as __metadata__, a fault elsewhere.
  bool Scalar(const char* what) {
    if (place_ == Place::kMetadata) return true;
    if (place_ == Place::kHeader && metadata_next_) return true;
    if (place_ == Place::kDocument) Fail(fmt::format("The header is {}, not an object.", what));
    if (place_ == Place::kHeader) {
      Fail(fmt::format("Tensor {} is described by {}, not by an object.", Quoted(key_), what));
    }
    Fail(fmt::format("Tensor {} has {} in its {}.", Quoted(tensor_.name), what, FieldName()));
  }

  const char* FieldName() const {
    if (place_ == Place::kShape || field_ == Field::kShape) return "shape";
    if (place_ == Place::kOffsets || field_ == Field::kOffsets) return "data_offsets";
    return "dtype";
  }

  bool StartMetadata() {
    place_ = Place::kMetadata;
    skip_depth_ = 1;
    return true;
  }

  bool EndMetadata() {
    if (--skip_depth_ == 0) place_ = Place::kHeader;
    return true;
  }

  void SetField(const std::string& name) {
    if (name == "dtype") {
      field_ = Field::kDtype;
    } else if (name == "shape") {
      field_ = Field::kShape;
    } else if (name == "data_offsets") {
      field_ = Field::kOffsets;
    } else {
      Fail(fmt::format("Tensor {} has the unknown field {}.", Quoted(tensor_.name), Quoted(name)));
    }
    if (std::exchange(seen_[size_t(field_)], true)) {
      Fail(fmt::format("Tensor {} has the field {} twice.", Quoted(tensor_.name), name));
    }
  }

  void SetDtype(const std::string& name) {
    for (const DtypeRow& row : kDtypes) {
      if (name == row.name) {
        tensor_.dtype = row.dtype;
        return;
      }
    }
    throw Error(ErrorCode::kUnsupported, fmt::format("Tensor {} has the unknown dtype {}.",
                                                     Quoted(tensor_.name), Quoted(name)));
  }

  void FinishTensor() {
    constexpr const char* kNames[] = {"dtype", "shape", "data_offsets"};
    for (size_t i = 0; i < seen_.size(); ++i) {
      if (!seen_[i]) Fail(fmt::format("Tensor {} lacks its {}.", Quoted(tensor_.name), kNames[i]));
    }
    CheckSize();
    header_.tensors.push_back(std::move(tensor_));
  }

  // REQUIRES all three fields. The span must be exactly what dtype and shape need.
  void CheckSize() const {
    if (tensor_.begin > tensor_.end) {
      Fail(fmt::format("Tensor {} begins at {} but ends at {}.", Quoted(tensor_.name),
                       tensor_.begin, tensor_.end));
    }
    uint64_t num_bits = uint64_t(DtypeBits(tensor_.dtype));
    bool overflow = false;
    for (const int64_t dim : tensor_.shape) {
      overflow = overflow || __builtin_mul_overflow(num_bits, uint64_t(dim), &num_bits);
    }
    if (overflow) {
      Fail(fmt::format("Tensor {} has the shape {}, whose size overflows.", Quoted(tensor_.name),
                       ShapeText(tensor_.shape)));
    }
    if (num_bits % 8 == 0 && num_bits / 8 == tensor_.num_bytes()) return;
    const std::string name = Quoted(tensor_.name);
    const std::string kind =
        fmt::format("{} of {}", ShapeText(tensor_.shape), DtypeName(tensor_.dtype));
    if (num_bits % 8 != 0) {
      Fail(fmt::format("Tensor {} is {}, which is no whole number of bytes.", name, kind));
    }
    Fail(fmt::format("Tensor {} is {}, which needs {} bytes, but it spans {}.", name, kind,
                     num_bits / 8, tensor_.num_bytes()));
  }

  SafetensorsHeader& header_;
  Place place_ = Place::kDocument;
  Field field_ = Field::kNone;
  std::string key_;  // of the header's or the metadata's current entry
  bool metadata_next_ = false;
  bool had_metadata_ = false;
  int64_t skip_depth_ = 0;
  SafetensorsTensor tensor_;
  std::array<bool, 3> seen_{};  // indexed by Field
  int num_offsets_ = 0;
};

void CheckNames(const std::vector<SafetensorsTensor>& tensors) {
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      Fail(fmt::format("The header has tensor {} twice.", Quoted(tensor.name)));
    }
  }
}

// Every byte of the data has exactly one owner. REQUIRES tensors by ascending (begin, end).
void CheckCoverage(const std::vector<SafetensorsTensor>& tensors, uint64_t data_bytes) {
  uint64_t position = 0;
  const SafetensorsTensor* owner = nullptr;  // of the bytes before `position`
  const auto owner_name = [&] { return owner ? Quoted(owner->name) : std::string("the header"); };
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.end > data_bytes) {
      Fail(
          fmt::format("Tensor {} ends at byte {}, but the file holds {} bytes of data: it was "
                      "cut off. Download it again.",
                      Quoted(tensor.name), tensor.end, data_bytes));
    }
    if (tensor.begin < position) {
      Fail(fmt::format("Tensors {} and {} overlap: one ends at byte {}, the other begins at {}.",
                       owner_name(), Quoted(tensor.name), position, tensor.begin));
    }
    if (tensor.begin > position) {
      Fail(fmt::format("Between {} and tensor {} lie {} bytes that belong to no tensor.",
                       owner_name(), Quoted(tensor.name), tensor.begin - position));
    }
    position = tensor.end;
    owner = &tensor;
  }
  if (position != data_bytes) {
    Fail(fmt::format("After {} follow {} bytes that belong to no tensor.", owner_name(),
                     data_bytes - position));
  }
}

}  // namespace

const char* DtypeName(Dtype dtype) { return kDtypes[size_t(dtype)].name; }
int DtypeBits(Dtype dtype) { return kDtypes[size_t(dtype)].bits; }

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsHeader ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes) {
  if (header.empty() || header.front() != '{') Fail("The header does not begin with '{'.");
  // nlohmann takes a NUL byte for the end of the text and would ignore what follows.
  if (const size_t nul = header.find('\0'); nul != std::string_view::npos) {
    Fail(fmt::format("The header is not valid JSON: a NUL byte at byte {}.", nul));
  }
  SafetensorsHeader result;
  HeaderEvents events(result);
  nlohmann::json::sax_parse(header.begin(), header.end(), &events);
  CheckNames(result.tensors);
  std::sort(result.tensors.begin(), result.tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  CheckCoverage(result.tensors, data_bytes);
  return result;
}

}  // namespace hillstar
