// A replay's report as text and as JSON. Plain functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/replay.h"

namespace hillstar {

// A table with a row for each quarter of the text, what there is to say of differences, and the
// closing line: "10000 of 10000 positions equal in bits between steps and prefill; ...".
std::string ReplayTable(const ReplayReport& report);

nlohmann::ordered_json ReplayJson(const ReplayReport& report);

}  // namespace hillstar
