#include "cli/tools_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/text_file.h"
#include "formats/json_scan.h"
#include "hillstar/error.h"
#include "tokenizer/tool_call_reader.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;

// Reads one tool after the other; messages say which one is wrong.
class ToolsReader {
 public:
  explicit ToolsReader(std::string file) : file_(std::move(file)) {}

  void Add(const Json& tool) {
    ++number_;
    if (!tool.is_object()) Fail("is no JSON object");
    const Json& function = FunctionOf(tool);
    const std::string name = NameOf(function);
    const auto description = function.find("description");
    if (description != function.end() && !description->is_string()) {
      Fail(fmt::format("({}) has a \"description\" that is no text", name));
    }
    const auto parameters = function.find("parameters");
    const bool has_parameters = parameters != function.end();
    if (has_parameters && !parameters->is_object()) {
      Fail(fmt::format("({}) has \"parameters\" that are no JSON schema: an object", name));
    }
    read_.tools.push_back({name, has_parameters ? parameters->dump() : ""});
    read_.tools_json.push_back(function.dump());
  }
  ToolsFile Take() { return std::move(read_); }

 private:
  const Json& FunctionOf(const Json& tool) const {
    const auto type = tool.find("type");
    if (type != tool.end() && *type != "function") {
      Fail(fmt::format("has the type {}; only \"function\" is known",
                       Quoted(type->is_string() ? type->get<std::string>() : type->dump())));
    }
    const auto function = tool.find("function");
    if (function == tool.end()) return tool;
    if (!function->is_object()) Fail("has a \"function\" that is no JSON object");
    return *function;
  }
  std::string NameOf(const Json& function) const {
    const Json given = function.value("name", Json());
    if (!given.is_string()) Fail("has no \"name\"");
    const std::string name = given.get<std::string>();
    if (!IsToolName(name)) {
      Fail(fmt::format("has the name {}; a name has 1 to {} letters, digits and _ - . : /",
                       Quoted(name), kMaxToolNameBytes));
    }
    for (const ToolDefinition& tool : read_.tools) {
      if (tool.name == name) Fail(fmt::format("has the name {} of another tool", name));
    }
    return name;
  }
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kBadFile, fmt::format("{}: tool {} {}", file_, number_, what));
  }

  std::string file_;
  int number_ = 0;
  ToolsFile read_;
};

}  // namespace

ToolsFile ReadToolsFile(const std::filesystem::path& path) {
  const std::string text = ReadTextFile(path);
  const Json tools = ParseOrderedJson(text, path.string(), text.size());
  if (!tools.is_array() || tools.empty()) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} holds no tools: a JSON array of functions", path.string()));
  }
  ToolsReader reader(path.string());
  for (const Json& tool : tools) reader.Add(tool);
  return reader.Take();
}

}  // namespace hillstar
