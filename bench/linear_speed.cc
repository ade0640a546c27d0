// How fast the linear layers of GLM-5.2 are on this GPU: weights a second for few tokens, products
// a second for many. Matrices are used in turn so that none is found in the cache.
//
// Usage: linear_speed [--shared=BYTES] [tokens ...], by default 1 2 4 8 16 64 2048. BYTES: that a
// block may have of shared memory.
//
// On an H200, GB/s of weights for 1, 2 and 4 tokens: experts up 3,725, 3,917, 4,028; down 3,106,
// 3,418, 3,638; o_proj w4 2,948, 2,412, 1,741; head 4,354, 4,281, 4,117. Microseconds for 64
// tokens: experts up 315, down 190, o_proj w4 109, q_b 36.
#include <algorithm>
#include <string_view>

#include "gpu_bench.h"

namespace hillstar::cuda {
namespace {

constexpr size_t kCacheBytes = size_t{300} << 20;  // what is used in turn is larger than any cache
constexpr int64_t kHidden = 6144, kExpertWidth = 2048, kNumExperts = 64, kRanks = 8;

// Something to multiply.
template <typename T>
T* AllocFilled(size_t count) {
  return Alloc<T>(count, 0x2a);
}

ActivationPlanes AllocPlanes(int64_t rows, int64_t cols) {
  ActivationPlanes p;
  p.cols = cols;
  p.hi = AllocFilled<int8_t>(size_t(rows * p.stride()));
  p.lo = AllocFilled<int8_t>(size_t(rows * p.stride()));
  p.scale = AllocFilled<float>(size_t(rows * p.groups()));
  p.sum = AllocFilled<int32_t>(size_t(rows * p.groups()));
  return p;
}

class Bench {
 public:
  Bench() {
    fmt::print("{}\n{:<34} {:>7} {:>9} {:>8} {:>8}\n", gpu_.name(), "what", "tokens", "us", "GB/s",
               "TOPS");
  }

  const KernelContext& context() const { return gpu_.context(); }
  void LimitShared(int bytes) { gpu_.LimitShared(bytes); }

  // Prints the time of run(i), i counting up. TOPS: two planes' multiplications and additions.
  void Measure(const char* what, int64_t tokens, double weight_bytes, double weights_times_tokens,
               const std::function<void(int)>& run) {
    const double seconds = gpu_.SecondsOf(run);
    fmt::print("{:<34} {:>7} {:>9.1f} {:>8.0f} {:>8.0f}\n", what, tokens, seconds * 1e6,
               weight_bytes / seconds * 1e-9, 4 * weights_times_tokens / seconds * 1e-12);
    std::fflush(stdout);
  }

 private:
  GpuBench gpu_;
};

struct MatrixSize {
  int64_t rows;
  int64_t cols;
};

// Layers side by side on the same inputs.
void MeasureLinear(Bench& bench, const char* what, WeightFormat format,
                   const std::vector<MatrixSize>& sizes, int64_t tokens) {
  double bytes = 0, weights = 0;
  for (const MatrixSize& s : sizes) {
    bytes += double(MatrixBytes(format, s.rows, s.cols));
    weights += double(s.rows * s.cols);
  }
  const int copies = int(double(kCacheBytes) / bytes) + 1;
  std::vector<std::vector<LinearSlice>> layers(static_cast<size_t>(copies));
  std::vector<void*> owned;
  const ActivationPlanes x = AllocPlanes(tokens, sizes[0].cols);
  for (auto& slices : layers) {
    for (const MatrixSize& s : sizes) {
      uint8_t* w = AllocFilled<uint8_t>(MatrixBytes(format, s.rows, s.cols));
      LinearSlice slice;
      slice.w = DenseView(format, s.rows, s.cols, w);
      slice.x = x;
      slice.num_tokens = tokens;
      slice.y = AllocFilled<float>(size_t(tokens * s.rows));
      slice.y_stride = s.rows;
      slices.push_back(slice);
      owned.insert(owned.end(), {w, slice.y});
    }
  }
  bench.Measure(what, tokens, bytes, weights * double(tokens),
                [&](int i) { Linear(bench.context(), layers[size_t(i % copies)]); });
  for (void* p : owned) Require(cudaFree(p));
}

void MeasureByHead(Bench& bench, const char* what, WeightFormat format, int64_t head_rows,
                   int64_t cols, int64_t tokens) {
  constexpr int64_t kHeads = 64;
  const size_t bytes = MatrixBytes(format, kHeads * head_rows, cols);
  const size_t copies = kCacheBytes / bytes + 1;
  uint8_t* w = AllocFilled<uint8_t>(bytes * copies);
  ByHead layer{DenseView(format, kHeads * head_rows, cols, w),
               kHeads,
               head_rows,
               AllocPlanes(tokens * kHeads, cols),
               tokens,
               AllocFilled<float>(size_t(tokens * kHeads * head_rows))};
  bench.Measure(what, tokens, double(bytes), double(kHeads * head_rows * cols * tokens),
                [&](int i) {
                  layer.w.data = w + size_t(i) % copies * bytes;
                  LinearByHead(bench.context(), layer);
                });
  Require(cudaFree(w));
  Require(cudaFree(layer.y));
}

// Eight experts a token, evenly, and the shared one.
void MeasureExperts(Bench& bench, int64_t tokens) {
  const ExpertShape shape{WeightFormat::kW4, kHidden, kExpertWidth};
  const size_t image_bytes = ExpertImageBytes(shape);
  static uint8_t* const images = AllocFilled<uint8_t>(image_bytes * (kNumExperts + 1));
  std::vector<const uint8_t*> addresses;
  for (int64_t e = 0; e < kNumExperts; ++e) addresses.push_back(images + size_t(e) * image_bytes);
  const int64_t slots = tokens * kRanks, chosen = std::min(slots, kNumExperts);
  std::vector<const int32_t*> begins;  // of one launch and the next
  for (int64_t first = 0; first < kNumExperts; first += kRanks) {
    std::vector<int32_t> begin{0};
    for (int64_t e = 0; e < kNumExperts; ++e) {
      const int64_t rank = (e - first + kNumExperts) % kNumExperts;
      const int64_t count = rank < chosen ? (slots - rank + chosen - 1) / chosen : 0;
      begin.push_back(begin.back() + int32_t(count));
    }
    begins.push_back(Copy(begin));
  }
  std::vector<int32_t> slot_tokens;
  for (int64_t s = 0; s < slots; ++s) slot_tokens.push_back(int32_t(s % tokens));
  ExpertTask task{Copy(addresses), shape, kNumExperts, nullptr, Copy(slot_tokens), slots, tokens};
  const ActivationPlanes x = AllocPlanes(tokens, kHidden), h = AllocPlanes(slots, kExpertWidth);
  float* hidden = AllocFilled<float>(size_t(slots * kExpertWidth));
  float* rows = AllocFilled<float>(size_t(slots * kHidden));
  const ExpertViews shared = ViewExpert(shape, images + size_t(kNumExperts) * image_bytes);
  LinearSlice gate;
  gate.w = shared.gate;
  gate.x = x;
  gate.num_tokens = tokens;
  gate.y = AllocFilled<float>(size_t(tokens * kHidden));
  gate.y_stride = kExpertWidth;
  LinearSlice down = gate;
  down.w = shared.down;
  down.x = h;
  down.y_stride = kHidden;
  const double used = double(chosen + 1) * double(kHidden * kExpertWidth);  // of one matrix
  const double done = double(slots + tokens) * double(kHidden * kExpertWidth);
  const double bytes_of_weight = double(TileBytes(shape.format)) / (kPanelRows * kGroup);
  bench.Measure("experts, up", tokens, 2 * used * bytes_of_weight, 2 * done, [&](int i) {
    task.begin = begins[size_t(i) % begins.size()];
    ExpertsUp(bench.context(), task, x, hidden, {gate, shared.up});
  });
  bench.Measure("experts, down", tokens, used * bytes_of_weight, done, [&](int i) {
    task.begin = begins[size_t(i) % begins.size()];
    ExpertsDown(bench.context(), task, h, rows, down);
  });
  for (void* p :
       {static_cast<void*>(hidden), static_cast<void*>(rows), static_cast<void*>(gate.y)}) {
    Require(cudaFree(p));
  }
}

void MeasureAll(Bench& bench, int64_t tokens) {
  constexpr WeightFormat kW4 = WeightFormat::kW4, kW8 = WeightFormat::kW8;
  MeasureExperts(bench, tokens);
  MeasureLinear(bench, "o_proj, w4", kW4, {{kHidden, 16384}}, tokens);
  MeasureLinear(bench, "q_a, kv_a, index k, w4", kW4,
                {{2048, kHidden}, {576, kHidden}, {128, kHidden}}, tokens);
  MeasureLinear(bench, "q_b, w4", kW4, {{16384, 2048}}, tokens);
  MeasureLinear(bench, "o_proj, w8", kW8, {{kHidden, 16384}}, tokens);
  MeasureByHead(bench, "64 heads of 512 x 192, w8", kW8, 512, 192, tokens);
  MeasureByHead(bench, "64 heads of 256 x 512, w8", kW8, 256, 512, tokens);
  if (tokens <= 8) MeasureLinear(bench, "head, w4", kW4, {{154880, kHidden}}, tokens);
}

}  // namespace
}  // namespace hillstar::cuda

int main(int argc, char** argv) {
  hillstar::cuda::Bench bench;
  std::vector<int64_t> tokens{1, 2, 4, 8, 16, 64, 2048};
  int first = 1;
  if (argc > 1 && std::string_view(argv[1]).starts_with("--shared=")) {
    bench.LimitShared(std::atoi(argv[1] + 9));
    first = 2;
  }
  if (argc > first) tokens.clear();
  for (int i = first; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));
  for (int64_t t : tokens) hillstar::cuda::MeasureAll(bench, t);
}
