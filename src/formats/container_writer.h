// Writes a container part by part so that it can be stopped at any moment and continued later: the
// job file says what is being made, every part has a journal, the manifest comes last. A finished
// part is never written again, a finished container never touched. One object owns the folder (by a
// lock) from Start to its end; parts may be filled from any threads, all else is for one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/container_manifest.h"
#include "formats/container_part.h"
#include "formats/file_io.h"

namespace hillstar {

inline constexpr std::string_view kJobFileName = "hillstar.job.json";
inline constexpr std::string_view kLockFileName = "hillstar.job.lock";

// What is to be written.
struct ContainerJob {
  // Names, formats and shapes; everything else is filled in by the writer.
  std::vector<ContainerTensor> tensors;
  std::vector<ContainerExperts> experts;
  // File name and text, from kSideFileNames; empty texts are left out.
  std::vector<std::pair<std::string, std::string>> side_files;
  // How it is made. A folder is continued only by a job with the same entries.
  std::vector<std::pair<std::string, std::string>> origin;
};

// Errors: kBadFile if the folder holds a container that a stopped job has left unfinished, saying
// how to resume it.
void RefuseUnfinished(const std::filesystem::path& folder);

class ContainerWriter {
 public:
  // Looks at the folder and writes nothing. Errors: kUsage if it holds a finished container, files
  // of something else, or an unfinished job that differs (naming the difference); kBadFile.
  ContainerWriter(const std::filesystem::path& folder, ContainerJob job);

  const std::filesystem::path& folder() const { return folder_; }
  bool continues() const { return continues_; }  // the folder held a part of this job
  uint64_t total_bytes() const;                  // side files and manifest included
  uint64_t finished_bytes() const;               // of weights that need not be written again
  uint64_t free_bytes() const;                   // of the file system that the folder is on

  // Throws kBudget, with the numbers, if what is missing does not fit the file system.
  void RequireSpace() const;

  // Creates the folder, takes it, writes job and side files. Errors: kIo, also if another
  // process writes here; as the constructor.
  void Start();

  // Part 0 is dense.bin, its items the tensors; part 1 + i holds the images of experts[i].
  size_t num_parts() const { return parts_.size(); }
  ContainerPart& part(size_t i) { return *parts_[i]; }
  const ContainerPart& part(size_t i) const { return *parts_[i]; }

  // Writes the manifest and removes what only a continuation needs. REQUIRES finished parts.
  void Finish();

 private:
  void ListParts();
  void InspectFolder();
  std::string JobText() const;
  void CompareJob(const std::string& path, std::string_view text) const;

  std::filesystem::path folder_;
  std::vector<std::pair<std::string, std::string>> side_files_;
  ContainerManifest manifest_;
  std::vector<std::unique_ptr<ContainerPart>> parts_;
  bool continues_ = false;
  File lock_;
};

}  // namespace hillstar
