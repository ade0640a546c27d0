#include "formats/checkpoint_folder.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <system_error>

#include "core/check.h"
#include "formats/file_io.h"
#include "formats/json_scan.h"
#include "formats/safetensors.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::string_view kIncompleteSuffix = ".incomplete";
// GLM-5.2's tokenizer.json has 20 MB, its index 7 MB.
constexpr uint64_t kMaxSideFileBytes = uint64_t{256} << 20;

// A name like "model-00002-of-00005.safetensors".
struct ShardNumber {
  std::string before;  // "model-"
  std::string after;   // "-of-00005.safetensors"
  size_t num_digits = 0;
  int64_t number = 0;
  int64_t count = 0;
};

bool ParseDigits(std::string_view digits, int64_t& value) {
  const char* const end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value);
  return !digits.empty() && result.ec == std::errc() && result.ptr == end;
}

bool ParseShardNumber(std::string_view name, ShardNumber& out) {
  const size_t of = name.rfind("-of-");
  if (of == std::string_view::npos || of == 0) return false;
  const size_t dash = name.rfind('-', of - 1);
  if (dash == std::string_view::npos) return false;
  const std::string_view digits = name.substr(dash + 1, of - dash - 1);
  out.before = name.substr(0, dash + 1);
  out.after = name.substr(of);
  out.num_digits = digits.size();
  const std::string_view count = name.substr(of + 4, name.size() - of - 4 - kShardSuffix.size());
  return ParseDigits(digits, out.number) && ParseDigits(count, out.count);
}

// A set "N of M" has all its shards. Errors: kNotFound naming the first that is missing.
void CheckNumberedShards(const std::vector<std::filesystem::path>& shards) {
  struct ShardSet {
    ShardNumber any;
    std::set<int64_t> numbers;
  };
  std::map<std::string, ShardSet> sets;
  for (const std::filesystem::path& shard : shards) {
    ShardNumber number;
    if (!ParseShardNumber(shard.filename().string(), number)) continue;
    ShardSet& set = sets[number.before + number.after];
    set.numbers.insert(number.number);
    set.any = number;
  }
  for (const auto& [key, set] : sets) {
    const int64_t num_missing = set.any.count - int64_t(set.numbers.size());
    if (num_missing <= 0) continue;
    int64_t missing = 1;
    while (set.numbers.contains(missing)) ++missing;
    const std::string name =
        fmt::format("{}{:0{}}{}", set.any.before, missing, set.any.num_digits, set.any.after);
    throw Error(ErrorCode::kNotFound,
                fmt::format("The shard {} is not in the folder ({} of {} are missing). Download it "
                            "again.",
                            Quoted(name), num_missing, set.any.count));
  }
}

// The names in a folder. By readdir: libstdc++'s directory_iterator ends the program when memory is
// short.
std::vector<std::string> ListNames(const std::filesystem::path& folder) {
  const auto close = [](DIR* stream) { ::closedir(stream); };
  const std::unique_ptr<DIR, decltype(close)> stream(::opendir(folder.c_str()));
  std::vector<std::string> names;
  errno = stream ? 0 : errno;
  while (stream) {
    const dirent* const entry = ::readdir(stream.get());
    if (!entry) break;
    names.emplace_back(entry->d_name);
    errno = 0;
  }
  if (errno != 0) {
    throw Error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                fmt::format("Cannot list the model's folder {}: {}.", folder.string(),
                            std::generic_category().message(errno)));
  }
  return names;
}

}  // namespace

std::vector<std::filesystem::path> ListShards(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> shards;
  std::set<std::string> incomplete;
  for (const std::string& name : ListNames(folder)) {
    if (name.ends_with(kShardSuffix)) shards.push_back(folder / name);
    if (name.ends_with(kIncompleteSuffix)) incomplete.insert(name);
  }
  std::sort(shards.begin(), shards.end());
  for (const std::string& name : incomplete) {
    // What lies beside its finished file is a leftover.
    const std::string finished = name.substr(0, name.size() - kIncompleteSuffix.size());
    std::error_code error;
    if (!std::filesystem::exists(folder / finished, error)) {
      throw Error(ErrorCode::kBadFile,
                  fmt::format("{} holds {}: a download has not finished. Go on with it, or delete "
                              "that file if the model is complete.",
                              folder.string(), Quoted(name)));
    }
  }
  if (shards.empty()) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{} holds no *.safetensors file.", folder.string()));
  }
  CheckNumberedShards(shards);
  return shards;
}

std::string ReadSideFile(const std::filesystem::path& folder, std::string_view file_name) {
  CHECK(file_name.find('/') == std::string_view::npos);
  const std::filesystem::path path = folder / file_name;
  std::error_code error;
  // A dangling link counts as there: opening it tells what is wrong.
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return "";
  std::string text = ReadWholeFile(path, kMaxSideFileBytes);
  if (IsGitLfsPointer(text)) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} is a git-LFS pointer, not the file itself. Fetch it with `git lfs "
                            "pull` or download it again.",
                            path.string()));
  }
  return text;
}

}  // namespace hillstar
