// How fast the indexer scores the keys of a context and selects the largest on this GPU, in the
// shape of GLM-5.2: one query of 32 heads of 128, 2,048 keys kept. Contexts are used in turn so
// that none is found in the cache. The bound: keys read at the speed at which this GPU reads, or
// products at which it multiplies, whichever takes longer.
//
// Usage: select_speed [positions ...], by default 8192 32768 131072 262144.
#include <algorithm>
#include <cstdio>

#include "gpu_bench.h"

namespace hillstar::cuda {
namespace {

constexpr int64_t kHeads = 32, kDim = 128, kKeep = 2048;

// Keys in `num_panels` panels, with small scales.
uint8_t* RandomKeys(const IndexKeyLayout& layout, int64_t num_panels) {
  const int64_t bytes = num_panels * layout.panel_bytes();
  uint8_t* memory = RandomBytes(size_t(bytes));
  std::vector<uint8_t> image(static_cast<size_t>(bytes));
  Require(cudaMemcpy(image.data(), memory, image.size(), cudaMemcpyDeviceToHost));
  std::mt19937 random(3);
  for (int64_t p = 0; p < num_panels; ++p) {
    for (int64_t key = 0; key < kIndexPanelTokens; ++key) {
      const float scale = 1e-3f * (1.0f + float(random() % 1024) / 1024);
      std::copy_n(reinterpret_cast<const uint8_t*>(&scale), sizeof scale,
                  image.begin() + p * layout.panel_bytes() + layout.scales_at() + 4 * key);
    }
  }
  Require(cudaMemcpy(memory, image.data(), image.size(), cudaMemcpyHostToDevice));
  return memory;
}

void Measure(GpuBench& gpu, int64_t num_planes, int64_t positions) {
  const IndexKeyLayout layout{kDim, num_planes};
  const int64_t pages = (positions + kPageTokens - 1) / kPageTokens;
  const int64_t bytes = pages * layout.page_bytes();
  const int64_t sets = std::max<int64_t>((int64_t{200} << 20) / bytes + 1, 4);
  uint8_t* memory = RandomKeys(layout, sets * pages * kPageTokens / kIndexPanelTokens);
  std::vector<uint8_t*> addresses;
  std::vector<PageId> ids;
  for (int64_t p = 0; p < pages * sets; ++p) {
    addresses.push_back(memory + p * layout.page_bytes());
    ids.push_back(PageId(p));
  }
  std::shuffle(ids.begin(), ids.end(), std::mt19937(2));
  PageId* const all_ids = Copy(ids);
  std::vector<const PageId* const*> ids_of_set;
  for (int64_t s = 0; s < sets; ++s) {
    ids_of_set.push_back(Copy(std::vector<const PageId*>{all_ids + s * pages}));
  }

  SelectTask task;
  task.num_tokens = 1;
  task.live = Copy(std::vector<int32_t>{1});
  task.positions = Copy(std::vector<int64_t>{positions - 1});
  task.max_positions = positions;
  task.queries.planes = {reinterpret_cast<int8_t*>(RandomBytes(kHeads * kDim)),
                         reinterpret_cast<int8_t*>(RandomBytes(kHeads * kDim)), kDim};
  std::vector<float> weights(kHeads);
  for (size_t h = 0; h < weights.size(); ++h) weights[h] = h % 3 == 0 ? -2e3f : 1e3f;
  task.queries.weight = Copy(weights);
  task.num_heads = kHeads;
  task.layout = layout;
  task.selection = {Alloc<int32_t>(kKeep), Alloc<int32_t>(1), kKeep};
  task.scratch_bytes = SelectScratchBytes(1, positions);
  task.scratch = Alloc<uint8_t>(task.scratch_bytes);
  task.bins = reinterpret_cast<int32_t*>(Alloc<uint8_t>(SelectBinBytes(1)));
  uint8_t* const* addresses_on_device = Copy(addresses);
  const auto run = [&](int i) {
    task.pages = {ids_of_set[size_t(i % sets)], addresses_on_device, 0};
    Select(gpu.context(), task);
  };

  const double seconds = gpu.SecondsOf(run, int(sets));
  const double products = double(positions * kHeads * kDim) * (num_planes == 2 ? 3 : 1);
  const double bound = gpu.BoundSeconds(double(bytes), products);
  fmt::print("{:<7}{:>10}{:>10.1f}{:>10.1f}{:>9.0f}%\n", num_planes, positions, seconds * 1e6,
             bound * 1e6, 100 * bound / seconds);
  for (const KernelTime& kernel : gpu.KernelTimes(run, int(sets))) {
    fmt::print("    {:<40}{:>9.1f} us\n", kernel.name, kernel.microseconds);
  }
  std::fflush(stdout);
  Require(cudaFree(memory));
  Require(cudaFree(task.scratch));
  Require(cudaFree(task.bins));
}

}  // namespace
}  // namespace hillstar::cuda

int main(int argc, char** argv) {
  hillstar::cuda::GpuBench gpu;
  std::vector<int64_t> contexts;
  for (int i = 1; i < argc; ++i) contexts.push_back(std::atoll(argv[i]));
  if (contexts.empty()) contexts = {8192, 32768, 131072, 262144};
  fmt::print("{}\n", gpu.name());
  gpu.BoundSeconds(1, 1);  // measures the peaks
  fmt::print("{:<7}{:>10}{:>10}{:>10}{:>10}\n", "planes", "positions", "us", "bound us",
             "of bound");
  for (const int64_t planes : {2, 1}) {
    for (const int64_t positions : contexts) hillstar::cuda::Measure(gpu, planes, positions);
  }
}
