#include "formats/container_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/version.h"
#include "formats/container_checksum.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

constexpr int kJobVersion = 1;
constexpr uint64_t kMaxJobBytes = uint64_t{1} << 20;
constexpr double kGigabyte = 1e9;

// The job's file as JSON; discarded where it is damaged.
Json ParseJob(std::string_view text) {
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

// The nearest folder above `path` that exists.
std::filesystem::path ExistingAncestor(std::filesystem::path path) {
  path = std::filesystem::absolute(path);
  while (!std::filesystem::exists(path) && path.has_relative_path()) path = path.parent_path();
  return path;
}

[[noreturn]] void RefuseFolder(const std::filesystem::path& folder, std::string_view why) {
  throw Error(ErrorCode::kUsage, fmt::format("{} {}", folder.native(), why));
}

// A member that is an object; an empty one where there is none.
Json ObjectOf(const Json& parent, const char* key) {
  const auto found = parent.find(key);
  return found != parent.end() && found->is_object() ? *found : Json::object();
}

bool IsLeftover(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kJobFileName);
}

}  // namespace

void RefuseUnfinished(const std::filesystem::path& folder) {
  const std::filesystem::path job_path = folder / kJobFileName;
  std::error_code error;
  if (Container::IsContainer(folder) || !std::filesystem::exists(job_path, error)) return;
  const Json job = ParseJob(ReadWholeFile(job_path, kMaxJobBytes));
  const bool is_synth =
      job.is_object() && ObjectOf(job, "origin").value("operation", Json()) == "synth";
  throw Error(ErrorCode::kBadFile,
              fmt::format("the {} into {} is not finished; run hillstar {} again to resume it",
                          is_synth ? "synthesis" : "conversion", folder.native(),
                          is_synth ? "synth" : "convert"));
}

ContainerWriter::ContainerWriter(const std::filesystem::path& folder, ContainerJob job)
    : folder_(folder) {
  manifest_.creator = ProgramVersion();
  manifest_.origin = std::move(job.origin);
  manifest_.tensors = std::move(job.tensors);
  manifest_.experts = std::move(job.experts);
  for (auto& [name, text] : job.side_files) {
    CHECK(std::find(std::begin(kSideFileNames), std::end(kSideFileNames), name) !=
          std::end(kSideFileNames));
    if (text.empty()) continue;
    manifest_.side_files.push_back({name, text.size(), Sha256Hex(text)});
    side_files_.emplace_back(name, std::move(text));
  }
  LayOut(&manifest_);
  manifest_.identity = ContainerIdentity(manifest_);  // of its final length, for total_bytes
  ListParts();
  InspectFolder();
}

void ContainerWriter::ListParts() {
  const std::string job_text = JobText();
  const uint64_t job = Checksum(job_text.data(), job_text.size());
  std::vector<PartItem> items;
  for (const ContainerTensor& tensor : manifest_.tensors) {
    items.push_back({tensor.offset, tensor.num_bytes});
  }
  parts_.push_back(std::make_unique<ContainerPart>(folder_, manifest_.dense_file, job,
                                                   std::move(items), manifest_.dense_bytes));
  for (const ContainerExperts& layer : manifest_.experts) {
    std::vector<PartItem> images;
    for (int64_t e = 0; e < layer.num_experts; ++e) {
      images.push_back({uint64_t(e) * layer.image_bytes, layer.image_bytes});
    }
    parts_.push_back(
        std::make_unique<ContainerPart>(folder_, layer.file, job, std::move(images),
                                        uint64_t(layer.num_experts) * layer.image_bytes));
  }
}

void ContainerWriter::InspectFolder() {
  if (!std::filesystem::exists(folder_)) return;
  if (!std::filesystem::is_directory(folder_)) RefuseFolder(folder_, "is not a folder");
  if (Container::IsContainer(folder_)) {
    RefuseFolder(folder_,
                 "holds a finished container, which is never overwritten; name another "
                 "folder or delete it first");
  }
  const std::filesystem::path job_path = folder_ / kJobFileName;
  if (!IsLeftover(folder_)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().native();
      if (name == kLockFileName || name == std::string(kJobFileName) + ".partial") continue;
      RefuseFolder(folder_, fmt::format("is not empty (it holds {}) and no unfinished container; "
                                        "name a new or an empty folder",
                                        name));
    }
    return;
  }
  CompareJob(job_path.native(), ReadWholeFile(job_path, kMaxJobBytes));
  continues_ = true;
  for (const auto& part : parts_) part->Inspect();
}

std::string ContainerWriter::JobText() const {
  Json job = {{"format", "hillstar-job"},
              {"version", kJobVersion},
              {"origin", Json::object()},
              {"side_files", Json::object()}};
  for (const auto& [key, value] : manifest_.origin) job["origin"][key] = value;
  for (const ContainerSideFile& file : manifest_.side_files) {
    job["side_files"][file.name] = file.sha256;
  }
  job["content"] = Sha256Hex(DescribeContent(manifest_, false));
  return job.dump(1) + "\n";
}

void ContainerWriter::CompareJob(const std::string& path, std::string_view text) const {
  const Json ours = Json::parse(JobText());
  const Json theirs = ParseJob(text);
  if (!theirs.is_object()) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} is damaged; delete its folder and begin again", path));
  }
  const auto refuse = [&](const std::string& key, const Json& there, const Json& now) {
    RefuseFolder(folder_, fmt::format("holds an unfinished container with another {}: {} there, {} "
                                      "now; name another folder or delete it",
                                      key, there.dump(), now.dump()));
  };
  // In the order in which the entries explain each other: the formats before the digests.
  const Json origin = ObjectOf(theirs, "origin"), sides = ObjectOf(theirs, "side_files");
  for (const auto& [key, value] : manifest_.origin) {
    if (origin.value(key, Json()) != value) refuse(key, origin.value(key, Json()), value);
  }
  for (const auto& [key, value] : origin.items()) {
    if (!ours["origin"].contains(key)) refuse(key, value, Json());
  }
  for (std::string_view name : kSideFileNames) {
    const std::string key(name);
    const Json now = ours["side_files"].value(key, Json()), there = sides.value(key, Json());
    if (now != there) refuse(key, there, now);
  }
  if (ours != theirs) {
    RefuseFolder(folder_,
                 "holds an unfinished container of other tensors; name another folder or "
                 "delete it");
  }
}

uint64_t ContainerWriter::total_bytes() const {
  uint64_t sum = FormatManifest(manifest_).size();
  for (const auto& part : parts_) sum += part->file_bytes();
  for (const auto& [name, text] : side_files_) sum += text.size();
  return sum;
}

uint64_t ContainerWriter::finished_bytes() const {
  uint64_t sum = 0;
  for (const auto& part : parts_) {
    sum += part->is_finished() ? part->file_bytes() : part->written_bytes();
  }
  return sum;
}

uint64_t ContainerWriter::free_bytes() const {
  return std::filesystem::space(ExistingAncestor(folder_)).available;
}

void ContainerWriter::RequireSpace() const {
  const uint64_t missing = total_bytes() - std::min(total_bytes(), finished_bytes());
  const uint64_t available = free_bytes();
  if (missing <= available) return;
  throw Error(
      ErrorCode::kBudget,
      fmt::format("{} needs {:.2f} GB more ({:.2f} GB in all, {:.2f} GB written), but only "
                  "{:.2f} GB are free there",
                  folder_.native(), double(missing) / kGigabyte, double(total_bytes()) / kGigabyte,
                  double(finished_bytes()) / kGigabyte, double(available) / kGigabyte));
}

void ContainerWriter::Start() {
  std::filesystem::create_directories(folder_);
  lock_ = File::OpenForWriting(folder_ / kLockFileName);
  if (!lock_.TryLock()) {
    throw Error(ErrorCode::kIo,
                fmt::format("{} is being written by another process", folder_.native()));
  }
  InspectFolder();  // once more: another process may have written here since
  if (!continues_) WriteFileAtomically(folder_ / kJobFileName, JobText());
  for (const auto& [name, text] : side_files_) {
    if (!std::filesystem::exists(folder_ / name)) WriteFileAtomically(folder_ / name, text);
  }
}

void ContainerWriter::Finish() {
  for (const auto& part : parts_) CHECK(part->is_finished());
  for (size_t t = 0; t < manifest_.tensors.size(); ++t) {
    manifest_.tensors[t].checksum = parts_[0]->checksum(t);
  }
  for (size_t l = 0; l < manifest_.experts.size(); ++l) {
    for (size_t e = 0; e < manifest_.experts[l].checksums.size(); ++e) {
      manifest_.experts[l].checksums[e] = parts_[1 + l]->checksum(e);
    }
  }
  manifest_.identity = ContainerIdentity(manifest_);
  WriteFileAtomically(folder_ / kManifestName, FormatManifest(manifest_));
  for (const auto& part : parts_) part->RemoveJournal();
  std::filesystem::remove(folder_ / kJobFileName);
  std::filesystem::remove(folder_ / kLockFileName);
}

}  // namespace hillstar
