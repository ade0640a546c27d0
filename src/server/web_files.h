// The files of the web page, built into the program. Constant; any thread.
#pragma once

#include <span>
#include <string_view>

namespace hillstar {

struct WebFile {
  std::string_view path;  // "/index.html"
  std::string_view content_type;
  std::string_view content;
  std::string_view etag;  // with quotes
};
std::span<const WebFile> WebFiles();

}  // namespace hillstar
