#include "model/synth.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "formats/container_checksum.h"
#include "hillstar/error.h"
#include "model/container_build.h"

namespace hillstar {
namespace {

// Random words by number (splitmix64 of key and number): any part of a tensor can be made alone,
// at several GB/s a core.
struct RandomWords {
  uint64_t key;

  uint64_t operator()(uint64_t number) const {
    uint64_t z = key + number * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
};

// Bytes of 0 stand for -128, which no format holds; they become 128, a value of 0.
uint64_t ReplaceZeroBytes(uint64_t x) {
  constexpr uint64_t kLow7 = 0x7F7F7F7F7F7F7F7Fu;
  const uint64_t nonzero = ((x & kLow7) + kLow7) | x;  // bit 7 of a byte: the byte is not 0
  return x | (~nonzero & ~kLow7);
}

// Root mean square of uniform integers in [-8, 7]: sqrt((256 - 1) / 12 + 1 / 4).
constexpr float kRmsW4 = 4.637f;
// And in [-127, 127], 0 twice as likely as the others: sqrt(2 * (1^2 + ... + 127^2) / 256).
constexpr float kRmsByte = 73.61f;

// Tiles of random integers with scales such that a weight's root mean square is `gain`.
class TileFiller {
 public:
  TileFiller(WeightFormat format, float gain) : format_(format) {
    const bool w4 = format == WeightFormat::kW4, w15 = format == WeightFormat::kW15;
    const float scale = gain / (w4 ? kRmsW4 : kRmsByte);
    const uint16_t half = FloatToHalf(scale);
    for (int r = 0; r < kPanelRows; ++r) {
      if (w15) {
        std::memcpy(scales_ + 4 * r, &scale, sizeof scale);
      } else {
        std::memcpy(scales_ + 2 * r, &half, sizeof half);
      }
    }
    scale_bytes_ = size_t(kPanelRows) * (w15 ? 4 : 2);
    num_words_ = (TileBytes(format) - scale_bytes_) / sizeof(uint64_t);
  }

  // `first` counts the tiles from the beginning of what `words` belongs to.
  void Fill(const RandomWords& words, uint64_t first, uint64_t count, uint8_t* out) const {
    for (uint64_t tile = first; tile < first + count; ++tile) {
      for (size_t w = 0; w < num_words_; ++w) {
        uint64_t word = words(tile * num_words_ + w);
        if (format_ != WeightFormat::kW4) word = ReplaceZeroBytes(word);
        std::memcpy(out + w * sizeof word, &word, sizeof word);
      }
      std::memcpy(out + num_words_ * sizeof(uint64_t), scales_, scale_bytes_);
      out += TileBytes(format_);
    }
  }

 private:
  WeightFormat format_;
  size_t num_words_ = 0;
  size_t scale_bytes_ = 0;
  uint8_t scales_[kPanelRows * 4] = {};
};

// A matrix of this gain passes on vectors of unit variance as such.
float UnitGain(int64_t cols) { return 1.0f / std::sqrt(float(cols)); }

class RandomSource : public ContainerSource {
 public:
  explicit RandomSource(uint64_t seed) : seed_(seed) {}

  void FillPanels(const TensorSpec& spec, int64_t first, int64_t count,
                  uint8_t* out) const override {
    if (spec.format == WeightFormat::kF32) {
      FillFloats(spec, first, count, out);
      return;
    }
    // PackPanel would leave zeros in what a geometry does not fill; both geometries fill all.
    CHECK(spec.rows % kPanelRows == 0 && spec.cols % kGroup == 0);
    // Rows of the embedding are activations: unit variance.
    const float gain = spec.name == "embed" ? 1.0f : UnitGain(spec.cols);
    const auto groups = uint64_t(NumGroups(spec.cols));
    TileFiller(spec.format, gain)
        .Fill(Words(spec.name), uint64_t(first) * groups, uint64_t(count) * groups, out);
  }

  void FillExpert(const ExpertLayerSpec& layer, int64_t expert, uint8_t* out) const override {
    const ExpertShape& shape = layer.shape;
    CHECK(shape.intermediate % kPanelRows == 0 && shape.intermediate % kGroup == 0);
    CHECK(shape.hidden % kPanelRows == 0 && shape.hidden % kGroup == 0);
    const size_t down = ExpertPanelOffset(shape, 2, 0);
    const size_t end = ExpertPanelOffset(shape, 2, NumPanels(shape.hidden));
    const RandomWords words = Words(layer.gate(expert));
    const uint64_t in_tiles = down / TileBytes(shape.format);
    TileFiller(shape.format, UnitGain(shape.hidden)).Fill(words, 0, in_tiles, out);
    TileFiller(shape.format, UnitGain(shape.intermediate))
        .Fill(words, in_tiles, (end - down) / TileBytes(shape.format), out + down);
    std::memset(out + end, 0, ExpertImageBytes(shape) - end);
  }

 private:
  RandomWords Words(const std::string& name) const {
    return {Checksum(name.data(), name.size()) ^ RandomWords{seed_}(0)};
  }

  void FillFloats(const TensorSpec& spec, int64_t first, int64_t count, uint8_t* out) const {
    constexpr float kBiasRange = 0.01f;  // small against the spread of router scores
    const auto n = PanelRangeBytes(spec, first, count) / sizeof(float);
    const uint64_t begin = PanelRangeBytes(spec, 0, first) / sizeof(float);
    const bool random = spec.recipe != TensorRecipe::kVector || spec.name.ends_with("router_bias");
    // Uniform in [-r, r] has the root mean square r / sqrt(3).
    const float range =
        spec.recipe == TensorRecipe::kVector ? kBiasRange : std::sqrt(3.0f) * UnitGain(spec.cols);
    const RandomWords words = Words(spec.name);
    for (size_t i = 0; i < n; ++i) {
      float value = spec.name.ends_with("_bias") ? 0.0f : 1.0f;  // norms change nothing
      if (random) value = range * (float(int64_t(words(begin + i) >> 40) - (1 << 23)) * 0x1p-23f);
      std::memcpy(out + i * sizeof(float), &value, sizeof value);
    }
  }

  uint64_t seed_;
};

std::string DescribeModel(const SynthPlan& plan) {
  const ModelConfig& c = plan.config;
  const FormatPlan& f = plan.job.formats;
  return fmt::format(
      "model      random weights (seed {}) of the geometry {}: {} layers ({} dense), hidden {}, {} "
      "experts of width {}{}\n"
      "formats    experts {}, other matrices {}, norms and router f32\n",
      plan.job.seed, plan.job.geometry, c.num_layers, c.num_dense_layers, c.hidden_size,
      c.num_experts, c.moe_intermediate_size, plan.job.with_mtp ? ", with an MTP layer" : "",
      WeightFormatName(f.experts), WeightFormatName(f.dense));
}

}  // namespace

SynthPlan PlanSynth(const SynthJob& job) {
  for (WeightFormat format : {job.formats.experts, job.formats.dense, job.formats.mtp_experts}) {
    if (format == WeightFormat::kF32) {
      throw Error(ErrorCode::kUsage, "matrices are stored as w4, w8 or w15, not as f32");
    }
  }
  SynthPlan plan;
  plan.job = job;
  const std::string config = SynthConfigJson(job);
  plan.config = ParseModelConfig(config, "");
  plan.table = ListTensors(plan.config, job.formats, job.with_mtp, job.with_mtp);
  ContainerJob container = ListJob(plan.table);
  container.side_files = {{"config.json", config}, {"tokenizer.json", SynthTokenizerJson(job)}};
  container.origin = {{"operation", "synth"},
                      {"geometry", job.geometry},
                      {"layers", fmt::format("{}", plan.config.num_layers)},
                      {"dense_layers", fmt::format("{}", plan.config.num_dense_layers)},
                      {"experts", WeightFormatName(job.formats.experts)},
                      {"dense", WeightFormatName(job.formats.dense)},
                      {"mtp_experts", WeightFormatName(job.formats.mtp_experts)},
                      {"mtp", job.with_mtp ? "yes" : "no"},
                      {"indexer", "yes"},
                      {"seed", fmt::format("{}", job.seed)}};
  plan.writer = std::make_unique<ContainerWriter>(job.out, std::move(container));
  plan.summary = DescribeModel(plan) + DescribeSizes(plan.table, *plan.writer);
  return plan;
}

void RunSynth(SynthPlan* plan, const ProgressFn& progress, const std::atomic<bool>* cancel) {
  plan->writer->RequireSpace();
  BuildContainer(plan->table, RandomSource(plan->job.seed),
                 {plan->job.num_threads, progress, cancel}, plan->writer.get());
}

}  // namespace hillstar
