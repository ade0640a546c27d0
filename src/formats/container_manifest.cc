#include "formats/container_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/container_checksum.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Limits far beyond any model, and low enough that no product of them leaves 64 bits: a tensor has
// at most 2^24 panels * 2^18 groups * 2112 bytes < 2^54, a layer's images at most
// 2^16 experts * 3 * 2^16 panels * 2^14 groups * 2112 bytes < 2^60.
constexpr uint64_t kMaxTensors = 100000;
constexpr uint64_t kMaxRows = uint64_t{1} << 28;
constexpr uint64_t kMaxCols = uint64_t{1} << 24;
constexpr uint64_t kMaxExpertDim = uint64_t{1} << 20;
constexpr uint64_t kMaxExperts = uint64_t{1} << 16;
constexpr uint64_t kMaxLayers = 4096;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 60;
constexpr size_t kMaxNameLength = 255;
constexpr size_t kSha256Digits = 64;

// Text from the file, fit for a message.
std::string Shown(std::string_view text) {
  constexpr size_t kShownLength = 80;
  std::string shown;
  for (char c : text.substr(0, kShownLength)) shown += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kShownLength ? shown + "..." : shown;
}

// Takes values out of one object, with messages that name the object and the key.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Refuse("is not an object");
  }

  [[noreturn]] void Refuse(std::string_view what) const {
    throw Error(ErrorCode::kBadFile, fmt::format("{} {}", where_, what));
  }
  const Json& Get(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) Refuse(fmt::format("lacks \"{}\"", key));
    return *found;
  }
  uint64_t Count(const char* key, uint64_t min, uint64_t max) const {
    const Json& value = Get(key);
    if (!value.is_number_unsigned()) {
      Refuse(fmt::format("has a \"{}\" that is not a whole number from {} to {}", key, min, max));
    }
    const uint64_t count = value.get<uint64_t>();
    if (count < min || count > max) {
      Refuse(fmt::format("has {} = {}, but {} to {} is allowed", key, count, min, max));
    }
    return count;
  }
  const std::string& Text(const char* key) const { return TextOf(Get(key), key); }
  const std::string& TextOf(const Json& value, const char* key) const {
    if (!value.is_string()) Refuse(fmt::format("has a \"{}\" that is not a string", key));
    return value.get_ref<const std::string&>();
  }
  const Json& Array(const char* key, uint64_t max) const {
    const Json& value = Get(key);
    if (!value.is_array()) Refuse(fmt::format("has a \"{}\" that is not an array", key));
    if (value.size() > max) {
      Refuse(
          fmt::format("has {} entries in \"{}\"; at most {} are allowed", value.size(), key, max));
    }
    return value;
  }
  // A name of printable characters without blanks: it stands in the lines under the identity.
  std::string Name(const char* key) const {
    const std::string& name = Text(key);
    const bool plain =
        std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
    if (name.empty() || name.size() > kMaxNameLength || !plain) {
      Refuse(fmt::format("has a \"{}\" that is no name: \"{}\"", key, Shown(name)));
    }
    return name;
  }
  // A file inside the container's folder and nowhere else.
  std::string FileName(const char* key) const {
    const std::string name = Name(key);
    if (name.find_first_of("/\\:") != std::string::npos || name.front() == '.') {
      Refuse(fmt::format("has a \"{}\" that is no plain file name: \"{}\"", key, Shown(name)));
    }
    return name;
  }
  WeightFormat Format(const char* key) const {
    const std::string& text = Text(key);
    for (WeightFormat format :
         {WeightFormat::kF32, WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15}) {
      if (text == WeightFormatName(format)) return format;
    }
    Refuse(fmt::format("has the unknown format \"{}\"; f32, w4, w8 and w15 exist", Shown(text)));
  }
  uint64_t ChecksumOf(const Json& value, const char* key) const {
    const auto checksum = ParseChecksumHex(TextOf(value, key));
    if (!checksum) Refuse(fmt::format("has a \"{}\" that is not 16 hexadecimal digits", key));
    return *checksum;
  }

 private:
  const Json& object_;
  std::string where_;
};

// Walks a text without building a document: refuses a key that an object has twice (a document
// would silently keep the last one) and deep nesting. nlohmann's own callback for a document takes
// time by the square of an array's length.
class KeyScan : public nlohmann::json_sax<Json> {
 public:
  explicit KeyScan(std::string_view name) : name_(name) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} has the key \"{}\" twice in one object", name_, Shown(key)));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    throw Error(ErrorCode::kBadFile, fmt::format("{} is not JSON: {}", name_, Shown(e.what())));
  }

 private:
  bool Enter() {
    constexpr size_t kMaxDepth = 16;  // a manifest nests 4 deep
    keys_.emplace_back();
    if (keys_.size() <= kMaxDepth) return true;
    throw Error(ErrorCode::kBadFile, fmt::format("{} nests deeper than {}", name_, kMaxDepth));
  }
  bool Leave() {
    keys_.pop_back();
    return true;
  }

  std::string_view name_;
  std::vector<std::set<std::string>> keys_;  // of the objects (and arrays) around a place
};

Json ParseJson(std::string_view text, std::string_view name) {
  KeyScan scan(name);
  Json::sax_parse(text.begin(), text.end(), &scan);
  return Json::parse(text.begin(), text.end());
}

ContainerTensor ParseTensor(const Json& json, const std::string& where) {
  const Fields unnamed(json, where);
  ContainerTensor tensor;
  tensor.name = unnamed.Name("name");
  const Fields fields(json, fmt::format("{} ({})", where, tensor.name));
  tensor.format = fields.Format("format");
  tensor.rows = int64_t(fields.Count("rows", 1, kMaxRows));
  tensor.cols = int64_t(fields.Count("cols", 1, kMaxCols));
  tensor.offset = fields.Count("offset", 0, kMaxFileBytes);
  tensor.num_bytes = fields.Count("num_bytes", 1, kMaxFileBytes);
  tensor.checksum = fields.ChecksumOf(fields.Get("checksum"), "checksum");
  if (tensor.offset % kPageBytes != 0) {
    fields.Refuse(
        fmt::format("begins at {}, which is not a multiple of {}", tensor.offset, kPageBytes));
  }
  const uint64_t expected = MatrixBytes(tensor.format, tensor.rows, tensor.cols);
  if (tensor.num_bytes != expected) {
    fields.Refuse(fmt::format("has {} bytes, but {} x {} in {} takes {}", tensor.num_bytes,
                              tensor.rows, tensor.cols, WeightFormatName(tensor.format), expected));
  }
  return tensor;
}

void CheckTensors(const ContainerManifest& manifest, std::string_view name) {
  std::vector<const ContainerTensor*> order;
  std::set<std::string_view> names;
  for (const ContainerTensor& tensor : manifest.tensors) {
    if (!names.insert(tensor.name).second) {
      throw Error(ErrorCode::kBadFile, fmt::format("{} lists {} twice", name, tensor.name));
    }
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  uint64_t end = 0;
  std::string_view before = "the beginning";
  for (const ContainerTensor* tensor : order) {
    if (tensor->offset != end) {
      throw Error(ErrorCode::kBadFile,
                  fmt::format("{}: {} begins at {} of {}, but after {} comes {} ({})", name,
                              tensor->name, tensor->offset, manifest.dense_file, before, end,
                              tensor->offset < end ? "an overlap" : "a hole"));
    }
    end = WholePages(tensor->offset + tensor->num_bytes);
    before = tensor->name;
  }
  if (manifest.dense_bytes != end) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("{}: {} has {} bytes, but its tensors end at {}", name,
                            manifest.dense_file, manifest.dense_bytes, end));
  }
}

ContainerExperts ParseExperts(const Json& json, const std::string& where) {
  const Fields unnamed(json, where);
  ContainerExperts experts;
  experts.layer = int64_t(unnamed.Count("layer", 0, kMaxLayers));
  const Fields fields(json, fmt::format("{} (layer {})", where, experts.layer));
  experts.num_experts = int64_t(fields.Count("num_experts", 1, kMaxExperts));
  experts.shape.format = fields.Format("format");
  if (experts.shape.format == WeightFormat::kF32) fields.Refuse("holds experts in f32");
  experts.shape.hidden = int64_t(fields.Count("hidden", 1, kMaxExpertDim));
  experts.shape.intermediate = int64_t(fields.Count("intermediate", 1, kMaxExpertDim));
  experts.image_bytes = fields.Count("image_bytes", 1, kMaxFileBytes);
  experts.file = fields.FileName("file");
  const uint64_t expected = ExpertImageBytes(experts.shape);
  if (experts.image_bytes != expected) {
    fields.Refuse(fmt::format("has images of {} bytes, but {} x {} in {} takes {}",
                              experts.image_bytes, experts.shape.hidden, experts.shape.intermediate,
                              WeightFormatName(experts.shape.format), expected));
  }
  const Json& checksums = fields.Array("checksums", kMaxExperts);
  if (checksums.size() != size_t(experts.num_experts)) {
    fields.Refuse(
        fmt::format("has {} checksums for {} experts", checksums.size(), experts.num_experts));
  }
  for (const Json& checksum : checksums) {
    experts.checksums.push_back(fields.ChecksumOf(checksum, "checksums"));
  }
  return experts;
}

void ParseSideFiles(const Fields& top, ContainerManifest* manifest, std::string_view name) {
  for (const Json& json : top.Array("side_files", std::size(kSideFileNames))) {
    const Fields fields(json, fmt::format("{}: a side file", name));
    ContainerSideFile file;
    file.name = fields.FileName("name");
    if (std::find(std::begin(kSideFileNames), std::end(kSideFileNames), file.name) ==
        std::end(kSideFileNames)) {
      fields.Refuse(fmt::format("is \"{}\", which no container has", Shown(file.name)));
    }
    file.num_bytes = fields.Count("num_bytes", 1, kMaxSideFileBytes);
    file.sha256 = fields.Text("sha256");
    if (file.sha256.size() != kSha256Digits) fields.Refuse("has no sha256 of 64 digits");
    manifest->side_files.push_back(std::move(file));
  }
}

// No two entries may claim one file.
void CheckFileNames(const ContainerManifest& manifest, std::string_view name) {
  std::set<std::string_view> files = {kManifestName};
  std::set<int64_t> layers;
  const auto claim = [&](std::string_view file) {
    if (!files.insert(file).second) {
      throw Error(ErrorCode::kBadFile, fmt::format("{} uses the file {} twice", name, file));
    }
  };
  claim(manifest.dense_file);
  for (const ContainerSideFile& file : manifest.side_files) claim(file.name);
  for (const ContainerExperts& experts : manifest.experts) {
    claim(experts.file);
    if (!layers.insert(experts.layer).second) {
      throw Error(ErrorCode::kBadFile,
                  fmt::format("{} lists the experts of layer {} twice", name, experts.layer));
    }
  }
}

void CheckFormatAndVersion(const Fields& top, std::string_view name) {
  if (top.Text("format") != "hillstar") {
    top.Refuse(fmt::format("has the format \"{}\", not \"hillstar\"", Shown(top.Text("format"))));
  }
  const uint64_t version = top.Count("version", 1, UINT32_MAX);
  if (version > uint64_t(kContainerVersion)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} has container version {}; this program reads up to version {}",
                            name, version, kContainerVersion));
  }
}

OrderedJson TensorJson(const ContainerTensor& t) {
  return {{"name", t.name},
          {"format", WeightFormatName(t.format)},
          {"rows", t.rows},
          {"cols", t.cols},
          {"offset", t.offset},
          {"num_bytes", t.num_bytes},
          {"checksum", ChecksumHex(t.checksum)}};
}

OrderedJson ExpertsJson(const ContainerExperts& e) {
  OrderedJson checksums = OrderedJson::array();
  for (uint64_t checksum : e.checksums) checksums.push_back(ChecksumHex(checksum));
  return {{"layer", e.layer},
          {"num_experts", e.num_experts},
          {"format", WeightFormatName(e.shape.format)},
          {"hidden", e.shape.hidden},
          {"intermediate", e.shape.intermediate},
          {"image_bytes", e.image_bytes},
          {"file", e.file},
          {"checksums", std::move(checksums)}};
}

// A JSON array with an entry a line.
template <typename Items, typename ToJson>
std::string Lines(const Items& items, const ToJson& to_json) {
  std::string text = "[";
  for (const auto& item : items) {
    text += text.size() == 1 ? "\n  " : ",\n  ";
    text += to_json(item).dump();
  }
  return text + "\n ]";
}

}  // namespace

ContainerManifest ParseManifest(std::string_view json, std::string_view name, IdentityCheck check) {
  const Json root = ParseJson(json, name);
  const Fields top(root, std::string(name));
  CheckFormatAndVersion(top, name);
  ContainerManifest manifest;
  manifest.creator = top.Text("creator");
  manifest.identity = top.Text("identity");
  const Json& origin = top.Get("origin");
  if (!origin.is_object()) top.Refuse("has an \"origin\" that is not an object");
  for (const auto& [key, value] : origin.items()) {
    manifest.origin.emplace_back(key, top.TextOf(value, "origin"));
  }
  const Fields dense(top.Get("dense"), fmt::format("{}: dense", name));
  manifest.dense_file = dense.FileName("file");
  manifest.dense_bytes = dense.Count("num_bytes", 0, kMaxFileBytes);
  for (const Json& tensor : dense.Array("tensors", kMaxTensors)) {
    manifest.tensors.push_back(
        ParseTensor(tensor, fmt::format("{}: tensor {}", name, manifest.tensors.size())));
  }
  CheckTensors(manifest, name);
  for (const Json& experts : top.Array("experts", kMaxLayers)) {
    manifest.experts.push_back(
        ParseExperts(experts, fmt::format("{}: experts {}", name, manifest.experts.size())));
  }
  ParseSideFiles(top, &manifest, name);
  CheckFileNames(manifest, name);
  const std::string identity = ContainerIdentity(manifest);
  if (check == IdentityCheck::kRequire && manifest.identity != identity) {
    top.Refuse(fmt::format("has the identity \"{}\", but its tensors and checksums give {}",
                           Shown(manifest.identity), identity));
  }
  return manifest;
}

std::string FormatManifest(const ContainerManifest& manifest) {
  OrderedJson origin = OrderedJson::object();
  for (const auto& [key, value] : manifest.origin) origin[key] = value;
  const auto side_file = [](const ContainerSideFile& f) {
    return OrderedJson{{"name", f.name}, {"num_bytes", f.num_bytes}, {"sha256", f.sha256}};
  };
  std::string text = "{\n";
  text += fmt::format(" \"format\": \"hillstar\",\n \"version\": {},\n", kContainerVersion);
  text += fmt::format(" \"creator\": {},\n", Json(manifest.creator).dump());
  text += fmt::format(" \"identity\": {},\n", Json(manifest.identity).dump());
  text += fmt::format(" \"origin\": {},\n", origin.dump());
  text += fmt::format(" \"side_files\": {},\n", Lines(manifest.side_files, side_file));
  text += fmt::format(" \"dense\": {{\"file\": {}, \"num_bytes\": {}, \"tensors\": {}}},\n",
                      Json(manifest.dense_file).dump(), manifest.dense_bytes,
                      Lines(manifest.tensors, TensorJson));
  text += fmt::format(" \"experts\": {}\n}}\n", Lines(manifest.experts, ExpertsJson));
  return text;
}

std::string DescribeContent(const ContainerManifest& manifest, bool with_checksums) {
  const auto checksum = [&](uint64_t value) {
    return with_checksums ? fmt::format(" {:016x}", value) : std::string();
  };
  std::string text;
  for (const ContainerSideFile& file : manifest.side_files) {
    if (file.name == "config.json") text += fmt::format("config {}\n", file.sha256);
  }
  for (const ContainerTensor& t : manifest.tensors) {
    text += fmt::format("tensor {} {} {} {}{}\n", t.name, WeightFormatName(t.format), t.rows,
                        t.cols, checksum(t.checksum));
  }
  for (const ContainerExperts& e : manifest.experts) {
    text += fmt::format("experts {} {} {} {} {}", e.layer, e.num_experts,
                        WeightFormatName(e.shape.format), e.shape.hidden, e.shape.intermediate);
    for (uint64_t value : e.checksums) text += checksum(value);
    text += '\n';
  }
  return text;
}

std::string ContainerIdentity(const ContainerManifest& manifest) {
  return Sha256Hex(DescribeContent(manifest, true));
}

std::string ExpertFileName(int64_t layer) { return fmt::format("experts-{:03}.bin", layer); }

void LayOut(ContainerManifest* manifest) {
  manifest->dense_file = kDenseFileName;
  uint64_t offset = 0;
  for (ContainerTensor& tensor : manifest->tensors) {
    tensor.num_bytes = MatrixBytes(tensor.format, tensor.rows, tensor.cols);
    tensor.offset = offset;
    offset = WholePages(offset + tensor.num_bytes);
  }
  manifest->dense_bytes = offset;
  for (ContainerExperts& experts : manifest->experts) {
    experts.image_bytes = ExpertImageBytes(experts.shape);
    experts.file = ExpertFileName(experts.layer);
    experts.checksums.resize(size_t(experts.num_experts));
  }
}

}  // namespace hillstar
