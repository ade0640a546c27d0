// How fast tokens are drawn from rows of GLM-5.2's 154,880 logits, on this GPU and on one core of
// this CPU.
#include <chrono>
#include <random>

#include "gpu_bench.h"
#include "ops/kernels.h"

namespace hillstar::cuda {
namespace {

constexpr int64_t kVocabulary = 154880;

struct Case {
  const char* name;
  SamplingParams params;
};
const Case kCases[] = {{"likeliest", {.temperature = 0}},
                       {"temperature", {}},
                       {"top-p 0.95", {.top_p = 0.95}},
                       {"top-k 50, top-p 0.95", {.top_p = 0.95, .top_k = 50}},
                       {"top-p 0.95, hot", {.temperature = 5, .top_p = 0.95}}};

double CpuSeconds(const std::vector<float>& row, const DrawParams& params) {
  constexpr int kRepeats = 20;
  std::vector<uint64_t> scratch(DrawScratchBytes(kVocabulary) / sizeof(uint64_t) + 1);
  double best = 1;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    DrawToken(*AvailableKernels().front(), row.data(), kVocabulary, params, i,
              reinterpret_cast<uint8_t*>(scratch.data()));
    const auto end = std::chrono::steady_clock::now();
    best = std::min(best, std::chrono::duration<double>(end - start).count());
  }
  return best;
}

int Main() {
  const GpuBench gpu;
  fmt::print("{}\n{:<22}{:>6}{:>10}{:>10}\n", gpu.name(), "drawing", "rows", "us", "CPU us");
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> logits(size_t(kDrawRows * kVocabulary));
  for (float& x : logits) x = normal(random);
  const std::vector<float> row(logits.begin(), logits.begin() + kVocabulary);
  DrawTask task;
  task.logits = Copy(logits);
  task.n = kVocabulary;
  task.next_positions = Alloc<int64_t>(kDrawRows);
  task.positions = task.next_positions;
  task.ids = Alloc<int32_t>(kDrawRows);
  task.next_ids = Alloc<int32_t>(kDrawRows);
  task.scratch = Alloc<uint8_t>(DrawTaskBytes());
  for (const Case& c : kCases) {
    const DrawParams params = DrawParamsOf(c.params);
    task.draws =
        params.is_greedy() ? nullptr : Copy(std::vector<DrawParams>(size_t(kDrawRows), params));
    const double cpu = CpuSeconds(row, params);
    for (const int64_t rows : {1, 8, 64}) {
      task.rows = rows;
      const double seconds = gpu.SecondsOf([&](int) { Draw(gpu.context(), task); });
      fmt::print("{:<22}{:>6}{:>10.1f}{:>10.1f}\n", c.name, rows, 1e6 * seconds,
                 1e6 * cpu * double(rows));
    }
  }
  return 0;
}

}  // namespace
}  // namespace hillstar::cuda

int main() { return hillstar::cuda::Main(); }
