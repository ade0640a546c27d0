// What a paused sequence costs: its pages written to a file and read back, or its tokens computed
// again. The verdict is in docs/kv_cache.md, "Steps of many sequences".
//   kv_parking FOLDER MODEL [TOKENS]   FOLDER is where the pages go
#include <fmt/format.h>

#include <cstdlib>
#include <exception>

#include "cli/bench.h"
#include "core/stopwatch.h"
#include "kv/parked_pages.h"
#include "model/config.h"

namespace hillstar {
namespace {

constexpr int kRepeat = 5;

void Measure(const char* folder, const char* model, int64_t num_tokens) {
  EngineOptions options;
  options.model = model;
  options.context_tokens = num_tokens;
  options.kv_tokens = 2 * num_tokens;
  options.load_mtp = false;
  const auto engine = Engine::Open(options);
  const std::vector<int32_t> ids = SpreadTokens(num_tokens, engine->config().vocab_size);
  std::vector<double> compute, write, read;
  for (int r = 0; r < kRepeat; ++r) {
    const auto sequence = engine->NewSequence({.shares_prefixes = false});
    const Stopwatch computing;
    sequence->Append(ids, LogitsMode::kNone);
    compute.push_back(computing.seconds());
    const Stopwatch writing;
    const ParkedPages parked(
        folder, sequence->num_pages(), engine->page_bytes(),
        [&](int64_t page, std::span<uint8_t> out) { sequence->CopyPage(page, out); });
    write.push_back(writing.seconds());
    const auto again = engine->NewSequence({.shares_prefixes = false});
    const Stopwatch reading;
    again->Restore(ids, [&](int64_t page, std::span<uint8_t> first, std::span<uint8_t> rest) {
      parked.Read(page, first, rest);
    });
    read.push_back(reading.seconds());
  }
  const double c = MedianOf(compute), w = MedianOf(write), b = MedianOf(read);
  fmt::print(
      "{} tokens, pages of {:.2f} MB: computed in {:.1f} ms, written in {:.1f}, read back in "
      "{:.1f}; computing takes {:.1f} times as long as both\n",
      num_tokens, double(engine->page_bytes()) / 1e6, 1e3 * c, 1e3 * w, 1e3 * b, c / (w + b));
}

}  // namespace
}  // namespace hillstar

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    fmt::print(stderr, "kv_parking FOLDER MODEL [TOKENS]\n");
    return 2;
  }
  try {
    hillstar::Measure(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 2048);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "kv_parking: {}\n", error.what());
    return 1;
  }
}
