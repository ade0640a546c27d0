// The file of --tools: what the model may call. Main thread only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tokenizer/answer_delta.h"

namespace hillstar {

struct ToolsFile {
  std::vector<ToolDefinition> tools;
  std::vector<std::string> tools_json;  // as a chat template takes them
};

// A JSON array of functions, each {"name", "description", "parameters"}, or that as the "function"
// of an object whose "type" is "function".
// Errors: those of ReadTextFile; kBadFile naming the file, the tool and what is wrong with it.
ToolsFile ReadToolsFile(const std::filesystem::path& path);

}  // namespace hillstar
