// How fast attention over keys that are there is on this GPU, in the shape of GLM-5.2: 64 heads,
// latents of 512, ropes of 64. A launch for each of several contexts in turn, so that short ones
// are not found in the cache. Its share of the bound: bytes at the speed at which this GPU
// reads or products at which it multiplies, whichever takes longer.
//
// Usage: attend_speed [FORMAT[:TOKENS:POSITIONS[:sparse]] ...], by default q15 q8 fp8.
#include <algorithm>
#include <cstdio>
#include <random>

#include "gpu_bench.h"

namespace hillstar::cuda {
namespace {

constexpr int64_t kHeads = 64, kLatent = 512, kRope = 64, kMaxKeys = 2048;

struct Context {
  int64_t tokens;
  int64_t positions;  // of the last token, and one
  bool sparse;        // kMaxKeys of them
  bool prompt;        // tokens follow each other, else each is of a sequence of its own
};

class Bench {
 public:
  Bench() {
    gpu_.BoundSeconds(1, 1);  // measures the peaks
    fmt::print("{}\n{:<6}{:>7}{:>10}{:>8}{:>10}{:>9}{:>8}{:>10}\n", gpu_.name(), "rows", "tokens",
               "positions", "keys", "us", "GB/s", "TOPS", "of bound");
  }

  void Measure(KvFormat format, const Context& c) {
    const KvRowLayout layout{kLatent, kRope, format};
    const int64_t sequences = c.prompt ? 1 : c.tokens;
    const int64_t pages_each = (c.positions + kPageTokens - 1) / kPageTokens;
    const int64_t rows = pages_each * sequences * kPageTokens;
    // Sets of pages, of which none is in the cache when its turn comes again.
    const int64_t bytes = rows * layout.row_bytes();
    const int64_t sets = std::min<int64_t>((int64_t{200} << 20) / bytes + 1, 24);
    uint8_t* memory = RandomBytes(size_t(bytes * sets));
    SetScales(layout, memory, rows * sets);
    std::vector<uint8_t*> addresses;
    for (int64_t p = 0; p < pages_each * sequences * sets; ++p) {
      addresses.push_back(memory + p * layout.page_bytes());
    }
    std::vector<PageId> ids(addresses.size());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = PageId(i);
    if (!c.prompt) std::shuffle(ids.begin(), ids.end(), std::mt19937(2));
    const PageId* all_ids = Copy(ids);
    std::vector<const PageId* const*> ids_of_set;
    for (int64_t s = 0; s < sets; ++s) {
      std::vector<const PageId*> of_tokens;
      for (int64_t t = 0; t < c.tokens; ++t) {
        of_tokens.push_back(all_ids + (s * sequences + (c.prompt ? 0 : t)) * pages_each);
      }
      ids_of_set.push_back(Copy(of_tokens));
    }

    AttendTask task;
    task.num_tokens = c.tokens;
    task.live = Copy(std::vector<int32_t>{int32_t(c.tokens)});
    std::vector<int64_t> positions;
    double keys = 0;
    for (int64_t t = 0; t < c.tokens; ++t) {
      positions.push_back(c.positions - 1 - (c.prompt ? c.tokens - 1 - t : 0));
      keys += double(c.sparse ? kMaxKeys : positions.back() + 1);
    }
    task.positions = Copy(positions);
    task.max_positions = c.positions;
    task.max_keys = c.sparse ? std::min(kMaxKeys, c.positions) : c.positions;
    const int64_t heads = c.tokens * kHeads;
    FillQueries(layout, heads, &task);
    task.num_heads = kHeads;
    task.layout = layout;
    std::vector<int32_t> list;
    for (int64_t t = 0; t < c.tokens && c.sparse; ++t) {
      for (int64_t i = 0; i < kMaxKeys; ++i) list.push_back(int32_t(i * c.positions / kMaxKeys));
    }
    if (list.empty()) list.push_back(0);
    task.selection = {Copy(list),
                      Copy(std::vector<int32_t>(size_t(c.tokens), c.sparse ? kMaxKeys : 0)),
                      kMaxKeys};
    task.scratch_bytes = AttendScratchBytes(c.tokens, task.max_keys, kHeads, layout);
    task.scratch = Alloc<uint8_t>(task.scratch_bytes);
    uint8_t* const* addresses_on_device = Copy(addresses);
    const auto attend = [&](int i) {
      task.pages = {ids_of_set[size_t(i % sets)], addresses_on_device, 0};
      Attend(gpu_.context(), task);
    };
    const double seconds = gpu_.SecondsOf(attend);
    const bool is_q8 = format == KvFormat::kQ8;
    const double products = 2.0 * ((is_q8 ? 2 : 3) * 2 * kLatent + 3 * kRope) * kHeads;
    const double read = c.prompt ? double(bytes) : keys * double(layout.row_bytes());
    // Rows are read, queries too, and planes of the values written.
    const double moved = read + 2 * double(heads * (layout.padded() + kLatent));
    const double bound = gpu_.BoundSeconds(moved, products / 2 * keys);
    fmt::print("{:<6}{:>7}{:>10}{:>8.0f}{:>10.1f}{:>9.0f}{:>8.0f}{:>9.0f}%\n", KvFormatName(format),
               c.tokens, c.positions, keys / double(c.tokens), seconds * 1e6, read / seconds * 1e-9,
               products * keys / seconds * 1e-12, 100 * bound / seconds);
    PrintKernels(attend);
    std::fflush(stdout);
    Require(cudaFree(memory));
    Require(cudaFree(task.scratch));
  }

 private:
  // Queries of so many heads, and room for what they attend to.
  static void FillQueries(const KvRowLayout& layout, int64_t heads, AttendTask* task) {
    task->queries.planes = {reinterpret_cast<int8_t*>(RandomBytes(size_t(heads * layout.padded()))),
                            reinterpret_cast<int8_t*>(RandomBytes(size_t(heads * layout.padded()))),
                            layout.padded()};
    task->queries.latent_scale = Copy(std::vector<float>(size_t(heads), 1e-8f));
    task->queries.rope_scale = task->queries.latent_scale;
    task->out.cols = kLatent;
    task->out.hi = Alloc<int8_t>(size_t(heads * kLatent));
    task->out.lo = Alloc<int8_t>(size_t(heads * kLatent));
    task->out.scale = Alloc<float>(size_t(heads * kLatent / kGroup));
    task->out.sum = Alloc<int32_t>(size_t(heads * kLatent / kGroup));
  }
  // The kernels of a run, each on its own: together they may take less.
  void PrintKernels(const std::function<void(int)>& attend) const {
    for (const KernelTime& kernel : gpu_.KernelTimes(attend, 8)) {
      fmt::print("{:>48.1f}  {}\n", kernel.microseconds, kernel.name);
    }
  }
  // Of every row, to something small.
  static void SetScales(const KvRowLayout& layout, uint8_t* memory, int64_t rows) {
    const float scales[2] = {1e-3f, 1e-3f};
    std::vector<uint8_t> image(size_t(layout.row_bytes() * rows));
    Require(cudaMemcpy(image.data(), memory, image.size(), cudaMemcpyDeviceToHost));
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(reinterpret_cast<const uint8_t*>(scales), sizeof scales,
                  image.begin() + r * layout.row_bytes() + layout.value_bytes());
    }
    Require(cudaMemcpy(memory, image.data(), image.size(), cudaMemcpyHostToDevice));
  }
  GpuBench gpu_;
};

void MeasureAll(Bench& bench, KvFormat format) {
  for (int64_t positions : {64, 300, 2048}) bench.Measure(format, {1, positions, false, false});
  bench.Measure(format, {1, 16384, true, false});
  for (int64_t positions : {16384, 262144}) bench.Measure(format, {1, positions, false, false});
  for (int64_t tokens : {8, 64}) {
    bench.Measure(format, {tokens, 300, false, false});
    bench.Measure(format, {tokens, 4096, true, false});
  }
  bench.Measure(format, {512, 64, false, false});
  bench.Measure(format, {2048, 2048, false, true});
}

}  // namespace
}  // namespace hillstar::cuda

int main(int argc, char** argv) {
  using hillstar::KvFormat;
  hillstar::cuda::Bench bench;
  std::vector<std::string> what(argv + 1, argv + argc);
  if (what.empty()) what = {"q15", "q8", "fp8"};
  for (const std::string& w : what) {
    const std::string name = w.substr(0, w.find(':'));
    const KvFormat format = name == "q15"  ? KvFormat::kQ15
                            : name == "q8" ? KvFormat::kQ8
                                           : KvFormat::kFp8;
    int64_t tokens = 0, positions = 0;
    if (std::sscanf(w.c_str() + name.size(), ":%ld:%ld", &tokens, &positions) == 2) {
      bench.Measure(format, {tokens, positions, w.ends_with(":sparse"), false});
    } else {
      hillstar::cuda::MeasureAll(bench, format);
    }
  }
}
