#include "formats/container.h"

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "formats/container_checksum.h"
#include "formats/container_manifest.h"
#include "formats/container_test_files.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

class ContainerTest : public testing::Test {
 protected:
  ContainerTest() : folder_(root_.path() / "small") { WriteSmallContainer(folder_); }

  Json Manifest() const { return Json::parse(ReadFile(folder_ / kManifestName)); }

  TempFolder root_;
  std::filesystem::path folder_;
};

TEST_F(ContainerTest, GivesBackWhatWasWritten) {
  EXPECT_TRUE(Container::IsContainer(folder_));
  EXPECT_FALSE(Container::IsContainer(root_.path()));
  const auto container = Container::Open(folder_);
  EXPECT_EQ(container->SideFile("config.json"), "{\"a\": 1}");
  EXPECT_EQ(container->SideFile("chat_template.jinja"), "");
  ASSERT_EQ(container->tensors().size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const ContainerTensor& tensor = container->tensors()[i];
    EXPECT_EQ(container->Find(tensor.name), &tensor);
    std::vector<uint8_t> bytes(tensor.num_bytes);
    container->ReadTensor(tensor, bytes.data());
    EXPECT_EQ(bytes, ItemBytes(0, i, tensor.num_bytes)) << tensor.name;
  }
  EXPECT_EQ(container->Find("absent"), nullptr);
  for (size_t l = 0; l < 2; ++l) {
    const ContainerExperts& layer = container->experts()[l];
    std::vector<uint8_t> images(3 * layer.image_bytes), expected;
    container->ReadExperts(layer, 0, 3, images.data());
    for (size_t e = 0; e < 3; ++e) {
      const auto image = ItemBytes(1 + l, e, layer.image_bytes);
      expected.insert(expected.end(), image.begin(), image.end());
    }
    EXPECT_EQ(images, expected);
    std::vector<uint8_t> one(layer.image_bytes);
    container->ReadExperts(layer, 1, 1, one.data());
    EXPECT_EQ(one, ItemBytes(1 + l, 1, layer.image_bytes));
  }
}

// Large enough for direct reads in several requests, with images that straddle them.
TEST(ContainerReads, LargeReadsPastThePageCacheAreTheSame) {
  const TempFolder root;
  ContainerJob job;
  ContainerTensor& tensor = job.tensors.emplace_back();
  tensor.name = "embed";
  tensor.format = WeightFormat::kW8;
  tensor.rows = 3000;
  tensor.cols = 3200;
  ContainerExperts& experts = job.experts.emplace_back();
  experts.num_experts = 7;
  experts.shape = {WeightFormat::kW8, 1024, 1000};
  {
    ContainerWriter writer(root.path() / "c", job);
    writer.Start();
    FillMissing(&writer);
  }
  const auto container = Container::Open(root.path() / "c");
  const ContainerExperts& layer = container->experts()[0];
  const uint64_t total = 7 * layer.image_bytes;
  ASSERT_GT(total, uint64_t{16} << 20);
  const auto aligned = [](uint64_t size) {
    return std::unique_ptr<uint8_t, void (*)(void*)>(
        static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, WholePages(size))), std::free);
  };
  const auto images = aligned(total);
  container->ReadExperts(layer, 0, 7, images.get());
  for (size_t e = 0; e < 7; ++e) {
    const auto expected = ItemBytes(1, e, layer.image_bytes);
    EXPECT_EQ(std::memcmp(images.get() + e * layer.image_bytes, expected.data(), expected.size()),
              0);
  }
  const auto bytes = aligned(container->tensors()[0].num_bytes);
  container->ReadTensor(container->tensors()[0], bytes.get());
  const auto expected = ItemBytes(0, 0, container->tensors()[0].num_bytes);
  EXPECT_EQ(std::memcmp(bytes.get(), expected.data(), expected.size()), 0);
}

TEST_F(ContainerTest, DamageIsFoundAndNamed) {
  const auto damage = [&](const char* file, uint64_t offset) {
    std::string content = ReadFile(folder_ / file);
    content[offset] = char(content[offset] ^ 1);
    std::filesystem::remove(folder_ / file);
    WriteFileAtomically(folder_ / file, content);
  };
  const auto container = Container::Open(folder_);
  const ContainerTensor& head = *container->Find("head");
  damage("dense.bin", head.offset + 77);
  damage("experts-002.bin", container->experts()[1].image_bytes + 5);
  damage("tokenizer.json", 1);
  const auto damaged = Container::Open(folder_);
  std::vector<uint8_t> bytes(1 << 20);
  damaged->ReadTensor(*damaged->Find("embed"), bytes.data());
  ExpectError(ErrorCode::kBadFile, {"head", "dense.bin", "checksum"},
              [&] { damaged->ReadTensor(head, bytes.data()); });
  const ContainerExperts& layer = damaged->experts()[1];
  damaged->ReadExperts(layer, 2, 1, bytes.data());
  ExpectError(ErrorCode::kBadFile, {"expert 1 of layer 2", "experts-002.bin"},
              [&] { damaged->ReadExperts(layer, 0, 3, bytes.data()); });
  ExpectError(ErrorCode::kBadFile, {"tokenizer.json", "sha256"},
              [&] { damaged->SideFile("tokenizer.json"); });
}

TEST_F(ContainerTest, MissingAndCutFilesAreNamed) {
  for (const char* file : {"dense.bin", "experts-001.bin", "experts-002.bin", "config.json"}) {
    const std::string content = ReadFile(folder_ / file);
    for (size_t size : {content.size() - 1, content.size() / 2, size_t{0}}) {
      WriteFileAtomically(folder_ / file, std::string_view(content).substr(0, size));
      ExpectError(ErrorCode::kBadFile, {file, fmt::format("{} bytes", size)},
                  [&] { Container::Open(folder_); });
    }
    std::filesystem::remove(folder_ / file);
    ExpectError(ErrorCode::kNotFound, {file}, [&] { Container::Open(folder_); });
    WriteFileAtomically(folder_ / file, content + "x");
    ExpectError(ErrorCode::kBadFile, {file}, [&] { Container::Open(folder_); });
    WriteFileAtomically(folder_ / file, content);
    Container::Open(folder_);
  }
  WriteFileAtomically(folder_ / kManifestName, "version https://git-lfs.github.com/spec/v1\n");
  ExpectError(ErrorCode::kBadFile, {"hillstar.json", "not JSON"},
              [&] { Container::Open(folder_); });
  WriteFileAtomically(folder_ / kManifestName, "");
  ExpectError(ErrorCode::kBadFile, {"hillstar.json"}, [&] { Container::Open(folder_); });
  ExpectError(ErrorCode::kNotFound, {"hillstar.json"}, [&] { Container::Open(root_.path()); });
}

struct Change {
  const char* what;
  std::string pointer;  // into the manifest
  Json value;
  const char* message;
  ErrorCode code = ErrorCode::kBadFile;
};

TEST_F(ContainerTest, EveryChangeOfTheManifestIsRefusedByName) {
  const std::string tensor = "/dense/tensors/1", experts = "/experts/0";
  const Change changes[] = {
      {"other file", "/format", "safetensors", "format"},
      {"newer version", "/version", 2, "version 2", ErrorCode::kUnsupported},
      {"version 0", "/version", 0, "version"},
      {"version as text", "/version", "1", "version"},
      {"huge version", "/version", 1e300, "version"},
      {"rows 0", tensor + "/rows", 0, "rows"},
      {"negative rows", tensor + "/rows", -1, "rows"},
      {"fractional rows", tensor + "/rows", 1.5, "rows"},
      {"rows as text", tensor + "/rows", "1", "rows"},
      {"rows as null", tensor + "/rows", nullptr, "rows"},
      {"rows beyond limits", tensor + "/rows", uint64_t{1} << 33, "rows"},
      {"rows * cols wraps to 0", tensor + "/rows", uint64_t{1} << 62, "rows"},
      {"rows near 2^64", tensor + "/rows", UINT64_MAX, "rows"},
      {"cols 2^33", tensor + "/cols", uint64_t{1} << 33, "cols"},
      {"cols too large for the bytes", tensor + "/cols", 1024, "400 bytes"},
      {"cols too small for the bytes", tensor + "/cols", 4, "400 bytes"},
      {"a byte short", tensor + "/num_bytes", 399, "399 bytes"},
      {"a byte long", tensor + "/num_bytes", 401, "401 bytes"},
      {"huge size", tensor + "/num_bytes", UINT64_MAX, "num_bytes"},
      {"offset inside a page", tensor + "/offset", 100, "multiple of 4096"},
      {"overlap", tensor + "/offset", 4096, "overlap"},
      {"same range", tensor + "/offset", 0, "overlap"},
      {"hole", tensor + "/offset", 40960, "hole"},
      {"offset beyond all", tensor + "/offset", uint64_t{1} << 63, "offset"},
      {"another format", tensor + "/format", "w8", "bytes"},
      {"unknown format", tensor + "/format", "w2", "w2"},
      {"same name", tensor + "/name", "embed", "embed twice"},
      {"empty name", tensor + "/name", "", "name"},
      {"long name", tensor + "/name", std::string(10000, 'n'), "name"},
      {"name with a line end", tensor + "/name", "a\nb", "name"},
      {"short checksum", tensor + "/checksum", "abc", "checksum"},
      {"checksum of other letters", tensor + "/checksum", "zzzzzzzzzzzzzzzz", "checksum"},
      {"checksum as number", tensor + "/checksum", 5, "checksum"},
      {"other checksum", tensor + "/checksum", "0123456789abcdef", "identity"},
      {"tensors as object", "/dense/tensors", Json::object(), "tensors"},
      {"tensor as number", tensor, 5, "not an object"},
      {"dense larger", "/dense/num_bytes", 1 << 20, "dense.bin"},
      {"dense as number", "/dense", 3, "not an object"},
      {"folder above", "/dense/file", "../dense.bin", "plain file name"},
      {"absolute path", "/dense/file", "/etc/passwd", "plain file name"},
      {"backslash", experts + "/file", "a\\b", "plain file name"},
      {"drive letter", experts + "/file", "c:x", "plain file name"},
      {"dots", experts + "/file", "..", "plain file name"},
      {"one file twice", experts + "/file", "dense.bin", "twice"},
      {"the manifest as weights", experts + "/file", "hillstar.json", "twice"},
      {"layer twice", "/experts/1/layer", 1, "layer 1 twice"},
      {"negative layer", experts + "/layer", -1, "layer"},
      {"layer beyond limits", experts + "/layer", 100000, "layer"},
      {"no experts", experts + "/num_experts", 0, "num_experts"},
      {"2^40 experts", experts + "/num_experts", uint64_t{1} << 40, "num_experts"},
      {"more experts than checksums", experts + "/num_experts", 4, "3 checksums for 4"},
      {"f32 experts", experts + "/format", "f32", "f32"},
      {"hidden 2^33", experts + "/hidden", uint64_t{1} << 33, "hidden"},
      {"hidden doubled", experts + "/hidden", 256, "images of"},
      {"image size", experts + "/image_bytes", 4096, "images of 4096"},
      {"side file elsewhere", "/side_files/0/name", "../config.json", "plain file name"},
      {"foreign side file", "/side_files/0/name", "notes.txt", "notes.txt"},
      {"side file twice", "/side_files/0/name", "tokenizer.json", "twice"},
      {"huge side file", "/side_files/0/num_bytes", uint64_t{1} << 50, "num_bytes"},
      {"other config", "/side_files/0/sha256", std::string(64, '0'), "identity"},
      {"origin as list", "/origin", Json::array(), "origin"},
      {"origin of numbers", "/origin/experts", 4, "origin"},
      {"identity", "/identity", "x", "identity"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.what);
    Json manifest = Manifest();
    manifest[Json::json_pointer(change.pointer)] = change.value;
    ExpectError(change.code, {change.message}, [&] { ParseManifest(manifest.dump(), "m"); });
  }
}

TEST_F(ContainerTest, EveryFieldIsNeeded) {
  const Json manifest = Manifest();
  int num_fields = 0;
  for (const char* object : {"", "/dense", "/dense/tensors/0", "/experts/0", "/side_files/0"}) {
    const Json::json_pointer pointer(object);
    for (const auto& [key, unused] : manifest[pointer].items()) {
      Json without = manifest;
      without[pointer].erase(key);
      ExpectError(ErrorCode::kBadFile, {key}, [&] { ParseManifest(without.dump(), "m"); });
      ++num_fields;
    }
  }
  EXPECT_EQ(num_fields, 8 + 3 + 7 + 8 + 3);
}

TEST_F(ContainerTest, DoubledKeysAreRefused) {
  std::string text = ReadFile(folder_ / kManifestName);
  text.insert(text.find("\"rows\""), "\"rows\": 1, ");
  ExpectError(ErrorCode::kBadFile, {"rows", "twice"}, [&] { ParseManifest(text, "m"); });
  ExpectError(ErrorCode::kBadFile, {"deeper"},
              [&] { ParseManifest(std::string(1000000, '['), "m"); });
}

// Prefixes and single damaged bytes either read as a whole manifest or throw Error; nothing else.
TEST_F(ContainerTest, PrefixesAndDamagedBytesAreRefused) {
  const std::string text = ReadFile(folder_ / kManifestName);
  for (size_t size = 0; size + 2 < text.size(); ++size) {
    EXPECT_THROW(ParseManifest(std::string_view(text).substr(0, size), "m"), Error) << size;
  }
  int accepted = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char byte : {'\0', '"', '{', '9', '\xFF'}) {
      std::string damaged = text;
      damaged[at] = byte;
      try {
        ParseManifest(damaged, "m");
        ++accepted;
      } catch (const Error&) {
      }
    }
  }
  // Bytes of the creator, the origin and side files other than config.json stand for nothing.
  EXPECT_LT(accepted, 700);
}

TEST_F(ContainerTest, AManifestOfGlmSizeParsesInAFractionOfASecond) {
  ContainerManifest manifest;
  for (int64_t i = 0; i < 60000; ++i) {
    ContainerTensor& tensor = manifest.tensors.emplace_back();
    tensor.name = fmt::format("layers.{}.tensor", i);
    tensor.rows = 16;
    tensor.cols = 64;
  }
  for (int64_t layer = 3; layer < 79; ++layer) {
    ContainerExperts& experts = manifest.experts.emplace_back();
    experts.layer = layer;
    experts.num_experts = 256;
    experts.shape = {WeightFormat::kW4, 6144, 2048};
  }
  LayOut(&manifest);
  manifest.identity = ContainerIdentity(manifest);
  const std::string text = FormatManifest(manifest);
  const std::clock_t start = std::clock();
  const ContainerManifest parsed = ParseManifest(text, "m");
  const double took = double(std::clock() - start) / CLOCKS_PER_SEC;  // of this process alone
  EXPECT_EQ(parsed.tensors.size(), 60000u);
  EXPECT_EQ(FormatManifest(parsed), text);
  std::printf("60,000 tensors, 19,456 images, %.1f MB: %.3f s\n", double(text.size()) / 1e6, took);
  // A release build takes well under a second; the rest is for sanitizers.
  EXPECT_LT(took, 5.0);
}

TEST(ContainerChecksum, KnownValues) {
  // XXH3-64 and sha256 of nothing, as their specifications give them.
  EXPECT_EQ(ChecksumHex(Checksum("", 0)), "2d06800538d394c2");
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  std::string text(100000, 'x');
  ChecksumStream stream;
  stream.Add(text.data(), 1);
  stream.Add(text.data() + 1, 70000);
  stream.Add(text.data() + 70001, text.size() - 70001);
  EXPECT_EQ(stream.value(), Checksum(text.data(), text.size()));
  EXPECT_EQ(ParseChecksumHex("00000000000000ff"), 255u);
  EXPECT_FALSE(ParseChecksumHex("0x000000000000ff"));
}

}  // namespace
}  // namespace hillstar
