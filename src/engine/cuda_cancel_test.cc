// A sequence that is cancelled while a layer of a step with prompts is asked for: it leaves before
// the next layer, on a GPU as on a CPU, and the others go on with the bits that they have alone.
// The flag is set when the operations enter a layer, so that every run sets it at the same place.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "device/host_device.h"
#include "engine/memory_plan.h"
#include "formats/container_test_files.h"
#include "kv/kv_cache.h"
#include "kv/sequence_kv.h"
#include "model/forward.h"
#include "model/tiny_checkpoint_test_files.h"
#include "ops/cpu_ops.h"
#include "ops/cuda_kernel_test.h"
#include "ops/cuda_ops.h"

namespace hillstar::cuda {
namespace {

constexpr size_t kSequences = 4;
constexpr int64_t kHistory = 20;     // tokens that each sequence has before the step
constexpr int64_t kMaxTokens = 128;  // of a step
constexpr int64_t kNumPages = 16;
constexpr int64_t kNever = 100;

// Sets a flag when it enters a layer.
template <typename Base>
class CancellingOps : public Base {
 public:
  using Base::Base;
  void EnterLayer(int64_t layer, int64_t first) override {
    if (layer == cancel_in) cancel = true;
    Base::EnterLayer(layer, first);
  }
  int64_t cancel_in = kNever;
  std::atomic<bool> cancel{false};
};

// Tokens of the sequences in one step; each wants its last logits, if any. The first is cancelled.
struct Case {
  std::vector<int64_t> num_tokens;
  size_t rotation = 0;  // of the sequences in the step
  bool doomed_wants = false;
  int64_t cancel_in = kNever;
};

struct Result {
  std::vector<StepSequence::Outcome> outcomes;
  std::vector<std::vector<float>> logits;  // of each sequence, or empty
  std::vector<uint64_t> uses_by_layer;     // of the step alone
};

// The tiny model with five layers, of which the first is dense and two select keys.
class Model {
 public:
  Model() {
    auto json = nlohmann::json::parse(kTinyConfig);
    json["num_hidden_layers"] = 5;
    json["indexer_types"] = {"full", "shared", "shared", "full", "shared"};
    const ModelConfig config = ParseModelConfig(json.dump(), "");
    WriteTinyCheckpoint(temp_.path(), MakeTinyTensors(ListTensors(config, {}, true, true), 7),
                        json.dump());
    source_ = ModelSource::Open(temp_.path().string(), "w8", false);
  }
  const ModelSource& source() const { return *source_; }

 private:
  TempFolder temp_;
  std::unique_ptr<ModelSource> source_;
};

// A forward pass on some device, and its sequences.
template <typename MyOps>
class Pass {
 public:
  Pass(const ModelSource& source, DeviceMemory& memory, MyOps& ops)
      : config_(source.config()),
        ops_(ops),
        shape_(KvShapeOf(source, KvFormat::kQ15)),
        weights_(LoadWeights(source, memory, 1, {})),
        cache_(shape_, memory, kNumPages, 0) {
    EngineSizes sizes;
    sizes.context_tokens = sizes.step_tokens = kMaxTokens;
    sizes.max_sequences = 8;
    sizes.kv_tokens = kNumPages * kPageTokens;
    ops.Prepare(OpsLimits(config_, shape_, sizes));
    forward_.emplace(config_, weights_, ops,
                     StepLimits{kMaxTokens, kMaxTokens, shape_.row, shape_.index});
    for (size_t i = 0; i < kSequences; ++i) {
      kv_.push_back(std::make_unique<SequenceKv>(cache_, false));
      kv_[i]->Prepare(0, kHistory);
      StepSequence sequence{.kv = kv_[i].get()};
      std::vector<BatchToken> history;
      for (int64_t t = 0; t < kHistory; ++t) history.push_back(Token(i, t, &sequence));
      forward_->Run(history, kHistory, {});
      forward_->Finish();
    }
  }

  Result Step(const Case& c) {
    const size_t n = c.num_tokens.size();
    std::vector<StepSequence> sequences(n);
    for (size_t i = 0; i < n; ++i) {
      kv_[i]->Prepare(kHistory, kHistory + c.num_tokens[i]);
      sequences[i] = {.kv = kv_[i].get()};
    }
    const std::vector<uint64_t> before = Uses();
    ops_.cancel = false;
    ops_.cancel_in = c.cancel_in;
    sequences[0].cancel = &ops_.cancel;
    const Batch batch = MakeBatch(c, sequences);
    forward_->Run(batch.tokens, batch.first_wanted, {});
    Result result = Results(batch, n);
    ops_.cancel_in = kNever;
    for (const StepSequence& s : sequences) {
      result.outcomes.push_back(s.outcome);
      s.kv->Truncate(kHistory);
    }
    result.uses_by_layer = Uses();
    for (size_t l = 0; l < before.size(); ++l) result.uses_by_layer[l] -= before[l];
    return result;
  }

 private:
  struct Batch {
    std::vector<BatchToken> tokens;
    std::vector<size_t> wanting;  // the sequence of each token from first_wanted on
    int64_t first_wanted = 0;
  };

  static BatchToken Token(size_t sequence, int64_t position, StepSequence* s) {
    return {int32_t((int64_t(sequence) * 17 + position * (position % 7 + 3)) % 50), position, s};
  }

  static Batch MakeBatch(const Case& c, std::vector<StepSequence>& sequences) {
    Batch batch;
    const size_t n = sequences.size();
    for (const bool wanted : {false, true}) {
      for (size_t k = 0; k < n; ++k) {
        const size_t i = (k + c.rotation) % n;
        const int64_t end = kHistory + c.num_tokens[i];
        const int64_t last = i == 0 && !c.doomed_wants ? end : end - 1;
        for (int64_t t = wanted ? last : kHistory; t < (wanted ? end : last); ++t) {
          batch.tokens.push_back(Token(i, t, &sequences[i]));
          if (wanted) batch.wanting.push_back(i);
        }
      }
    }
    batch.first_wanted = int64_t(batch.tokens.size() - batch.wanting.size());
    return batch;
  }

  Result Results(const Batch& batch, size_t num_sequences) {
    Result result;
    result.logits.resize(num_sequences);
    const std::vector<int32_t> rows(forward_->rows().begin(), forward_->rows().end());
    const auto vocab = size_t(config_.vocab_size);
    std::vector<float> logits(rows.size() * vocab);
    if (!rows.empty()) forward_->Logits(0, int64_t(rows.size()), logits.data());
    forward_->Finish();
    for (size_t r = 0; r < rows.size(); ++r) {
      const float* row = logits.data() + r * vocab;
      result.logits[batch.wanting[size_t(rows[r] - batch.first_wanted)]].assign(row, row + vocab);
    }
    return result;
  }

  std::vector<uint64_t> Uses() {
    EngineActivity activity;
    forward_->ReadExpertUses(&activity);
    std::vector<uint64_t> by_layer(activity.moe_layers.size());
    for (size_t i = 0; i < activity.expert_uses.size(); ++i) {
      by_layer[i / size_t(activity.num_experts)] += activity.expert_uses[i];
    }
    return by_layer;
  }

  const ModelConfig& config_;
  MyOps& ops_;
  const KvShape shape_;
  const ModelWeights weights_;
  KvCache cache_;
  std::optional<ForwardPass> forward_;
  std::vector<std::unique_ptr<SequenceKv>> kv_;
};

class CancelledBetweenLayers : public testing::Test {
 protected:
  void SetUp() override {
    HILLSTAR_NEEDS_GPU();
    cudaDeviceProp properties;
    ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    cuda_memory_.emplace(0, std::numeric_limits<uint64_t>::max());
    cuda_ops_.emplace(*cuda_memory_, properties, false);
    gpu_.emplace(model_.source(), *cuda_memory_, *cuda_ops_);
    cpu_ops_.emplace(ChooseKernels("auto"), 2, host_memory_.budget());
    cpu_.emplace(model_.source(), host_memory_, *cpu_ops_);
  }

  // The same on both devices, and the others' logits as if nobody were cancelled.
  void ExpectSame(const Case& c) {
    Case whole = c;
    whole.cancel_in = kNever;
    const Result want = cpu_->Step(whole), on_cpu = cpu_->Step(c), on_gpu = gpu_->Step(c);
    using Outcome = StepSequence::Outcome;
    EXPECT_EQ(on_cpu.outcomes, on_gpu.outcomes);
    EXPECT_EQ(on_cpu.uses_by_layer, on_gpu.uses_by_layer);
    for (size_t i = 0; i < c.num_tokens.size(); ++i) {
      EXPECT_EQ(on_gpu.outcomes[i], i == 0 ? Outcome::kCancelled : Outcome::kDone);
      if (i > 0) {
        EXPECT_EQ(on_cpu.logits[i], want.logits[i]) << "sequence " << i;
        EXPECT_EQ(on_gpu.logits[i], want.logits[i]) << "sequence " << i;
      }
    }
    // Two experts a token; layer 1 is the first with experts, and the last one has wanted rows.
    uint64_t others = 0;
    for (size_t i = 1; i < c.num_tokens.size(); ++i) others += 2 * uint64_t(c.num_tokens[i]);
    for (int64_t layer = 1; layer < 4; ++layer) {
      const uint64_t doomed = layer <= c.cancel_in ? 2 * uint64_t(c.num_tokens[0]) : 0;
      EXPECT_EQ(on_gpu.uses_by_layer[size_t(layer) - 1], others + doomed) << "layer " << layer;
    }
  }

  const Model model_;
  HostMemory host_memory_;
  std::optional<CudaMemory> cuda_memory_;
  std::optional<CancellingOps<CudaOps>> cuda_ops_;
  std::optional<CancellingOps<CpuOps>> cpu_ops_;
  std::optional<Pass<CancellingOps<CudaOps>>> gpu_;
  std::optional<Pass<CancellingOps<CpuOps>>> cpu_;
};

// A prompt, or one token in front of several that move up; another prompt and answers.
TEST_F(CancelledBetweenLayers, TheOthersGoOn) {
  for (const int64_t doomed : {14, 1}) {
    for (size_t rotation = 0; rotation < 4; ++rotation) {
      for (int64_t layer = 0; layer < 4; ++layer) {
        if (HILLSTAR_CUDA_IS_EMULATED && (rotation + uint64_t(layer)) % 2 == 1) continue;
        const Case c{{doomed, 1, 6, 1}, rotation, rotation >= 2, layer};
        SCOPED_TRACE(
            fmt::format("{} tokens, rotation {}, cancelled in layer {}", doomed, rotation, layer));
        ExpectSame(c);
      }
    }
  }
}

// Then nothing is asked for any more, and the next step is as if it had not been.
TEST_F(CancelledBetweenLayers, AloneItEndsTheStep) {
  for (int64_t layer = 0; layer < 4; ++layer) {
    SCOPED_TRACE(layer);
    ExpectSame({{10}, 0, layer % 2 == 1, layer});
  }
}

// In the last layer a prompt that wants no logits is done; one that wants some is not.
TEST_F(CancelledBetweenLayers, TheLastLayer) {
  for (const bool wants : {false, true}) {
    const Case c{{10, 1}, 0, wants, 4};
    const Result on_cpu = cpu_->Step(c), on_gpu = gpu_->Step(c);
    using Outcome = StepSequence::Outcome;
    EXPECT_EQ(on_cpu.outcomes[0], wants ? Outcome::kCancelled : Outcome::kDone);
    EXPECT_EQ(on_gpu.outcomes, on_cpu.outcomes);
    EXPECT_EQ(on_gpu.logits, on_cpu.logits);
    EXPECT_EQ(on_gpu.uses_by_layer, on_cpu.uses_by_layer);
  }
}

}  // namespace
}  // namespace hillstar::cuda
