// What an engine has done since it was opened, and what its steps spent their time on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace hillstar {

// What a step does. Norms, and what joins the residual stream, belong to what they stand next to.
enum class Stage {
  kOther,      // embeddings, tables and pages of the step, and what the host does around it
  kAttention,  // with its projections, those of the indexer's queries and keys among them
  kIndexer,    // index scores and the selection of keys
  kRouter,     // its logits, the choice of experts, rows by expert
  kExperts,    // routed and shared
  kDenseMlp,
  kHead,  // with the final norm and the way of the logits to the host
  kDraw,  // of tokens, where the engine draws them
  kNone,  // between steps
};
inline constexpr std::string_view kStageNames[] = {"other",   "attention", "indexer", "router",
                                                   "experts", "dense mlp", "head",    "draw"};
inline constexpr size_t kNumStages = std::size(kStageNames);  // all but kNone
static_assert(kNumStages == size_t(Stage::kNone));

struct EngineActivity {
  // Layers with experts, in ascending order; the MTP layer, if it is loaded, is the one behind all
  // others and counts what MtpArgmax computed.
  std::vector<int64_t> moe_layers;
  int64_t num_experts = 0;
  // [moe_layers, num_experts]: tokens that the layer's router sent to the expert, prompts' and
  // answers'. In the last layer a prompt's tokens whose logits nobody wants have no experts, here
  // as in the computation. A token that leaves a step counts in the layers that it went through;
  // one whose values are not finite counts in any.
  std::vector<uint64_t> expert_uses;

  // What step_seconds went to, in the order of Stage. On a GPU, step_seconds in the shares of the
  // step that ProfileStep measured last: a step of one token, whatever the others were. Empty where
  // it measured none.
  struct StageTime {
    std::string name;
    double seconds = 0;
  };
  std::vector<StageTime> stages;

  // Time in which steps were under way, by the host's clock, the MTP layer's included. Decode on a
  // GPU has one under way while it tells tokens.
  double step_seconds = 0;
  // Steps that began and the tokens that they began with. On a GPU Decode may compute one step at
  // its end whose tokens are not taken; it counts, as its uses of experts do.
  uint64_t steps = 0;
  uint64_t tokens = 0;
};

}  // namespace hillstar
