// The files of a checkpoint's folder: which are shards, what tells that a download is unfinished,
// and the texts beside the weights. Pure functions of the folder's state.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace hillstar {

// Every *.safetensors of the folder, sorted by name.
// Errors: kNotFound if the folder or any shard is missing (of a set named N-of-M as well);
// kBadFile, naming the file, for a download that has not finished (`.incomplete`).
std::vector<std::filesystem::path> ListShards(const std::filesystem::path& folder);

// The text of a file of the folder; empty if there is none. Errors: kIo; kBadFile for a git-LFS
// pointer or a file too large to be what its name says.
std::string ReadSideFile(const std::filesystem::path& folder, std::string_view file_name);

}  // namespace hillstar
