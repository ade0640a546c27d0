#include "server/web_files.h"

namespace hillstar {

std::span<const WebFile> WebFiles() { return {}; }

}  // namespace hillstar
