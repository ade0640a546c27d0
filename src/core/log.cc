#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "hillstar/error.h"

namespace hillstar {
namespace {

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("hillstar",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("hillstar %l: %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *logger;
}

}  // namespace

void SetLogLevel(std::string_view level) {
  if (level == "error") return Logger().set_level(spdlog::level::err);
  if (level == "warn") return Logger().set_level(spdlog::level::warn);
  if (level == "info") return Logger().set_level(spdlog::level::info);
  if (level == "debug") return Logger().set_level(spdlog::level::debug);
  throw Error(ErrorCode::kUsage, "there is no log level \"" + std::string(level) + "\"");
}

void ShowLogTimes() { Logger().set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l: %v"); }

void LogError(const std::string& sentence) { Logger().error("{}", sentence); }
void LogWarn(const std::string& sentence) { Logger().warn("{}", sentence); }
void LogInfo(const std::string& sentence) { Logger().info("{}", sentence); }
void LogDebug(const std::string& sentence) { Logger().debug("{}", sentence); }

}  // namespace hillstar
