// Which program this is, for --version and for the files that it writes. Any thread may call.
#pragma once

namespace hillstar {

// "hillstar 0.1.0", by the version of the build.
const char* ProgramVersion();

}  // namespace hillstar
