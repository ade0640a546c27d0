#include "core/version.h"

namespace hillstar {

const char* ProgramVersion() { return "hillstar " HILLSTAR_VERSION; }

}  // namespace hillstar
