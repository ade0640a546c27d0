// What the program tells about itself, on standard error, one line each: level and sentence.
// Results go to standard output and never through here. Any thread may log.
#pragma once

#include <string>
#include <string_view>

namespace hillstar {

// "error", "warn", "info" or "debug". Errors: kUsage for another word.
void SetLogLevel(std::string_view level);

// Each line then begins with the time, for programs that run long.
void ShowLogTimes();

void LogError(const std::string& sentence);
void LogWarn(const std::string& sentence);
void LogInfo(const std::string& sentence);
void LogDebug(const std::string& sentence);

}  // namespace hillstar
