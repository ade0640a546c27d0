// The engine on the demo model's BF16 checkpoint (W15) against outputs of transformers in float32.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hillstar/engine.h"
#include "model/config.h"

namespace hillstar {
namespace {

std::string DemoFolder() { return HILLSTAR_DEMO_CHECKPOINT; }

nlohmann::json OracleCases() {
  std::ifstream file(DemoFolder() + "/oracle.json");
  return nlohmann::json::parse(file)["cases"];
}

std::unique_ptr<Engine> OpenDemo() {
  EngineOptions options;
  options.model = DemoFolder() + "/checkpoint";
  return Engine::Open(options);
}

int32_t ArgMax(std::span<const float> row) {
  return int32_t(std::max_element(row.begin(), row.end()) - row.begin());
}

// Positions whose margin is larger must agree: docs/numerics.md, "Against float32".
// MarginTolerance(6, 4.5).
constexpr double kTolerance = 0.0145;

TEST(Oracle, ArgmaxOfEveryPositionBeyondTheTolerance) {
  if (DemoFolder().empty()) GTEST_SKIP() << "HILLSTAR_DEMO_CHECKPOINT is not set";
  const auto engine = OpenDemo();
  const size_t vocab = size_t(engine->config().vocab_size);
  int64_t num_positions = 0, num_different = 0;
  for (const auto& c : OracleCases()) {
    std::vector<int32_t> ids = c["prompt_ids"];
    const std::vector<int32_t> greedy = c["greedy_ids"];
    ids.insert(ids.end(), greedy.begin(), greedy.end());
    if (ids.size() > 600) continue;  // `hillstar score` runs the long ones
    const std::vector<int32_t> argmax = c["argmax"];
    const std::vector<double> margin = c["margin"];
    const auto sequence = engine->NewSequence({.keep_hidden = true});
    const auto logits = sequence->Append(ids, LogitsMode::kAll);
    for (size_t t = 0; t < ids.size(); ++t, ++num_positions) {
      const int32_t got = ArgMax(logits.subspan(t * vocab, vocab));
      if (got == argmax[t]) continue;
      ++num_different;
      EXPECT_LE(margin[t], kTolerance) << c["name"] << " position " << t << " got " << got;
    }
    const std::vector<int32_t> mtp = c["mtp_argmax"];
    const std::vector<MtpToken> got = sequence->MtpArgmax(0);
    int64_t mtp_different = 0;
    for (size_t t = 0; t < got.size(); ++t) mtp_different += got[t].id != mtp[t];
    EXPECT_LE(mtp_different, int64_t(got.size()) / 100) << c["name"];
    RecordProperty("mtp_different_" + c["name"].get<std::string>(), std::to_string(mtp_different));
  }
  EXPECT_GT(num_positions, 1500);
  EXPECT_LE(num_different, 3);
}

}  // namespace
}  // namespace hillstar
