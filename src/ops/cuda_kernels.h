// The operations as kernels of a GPU: each function puts one operation on a stream. All pointers
// are to device memory unless said otherwise; nothing waits, nothing allocates. Each gives the bits
// of the reference of its operation. Errors: kDevice if the launch is refused.
//
// A step's kernels may be captured into a graph and replayed with fewer tokens than they were
// shaped for: where a function takes `live`, tokens from *live on are left alone; others compute
// rows behind it that nobody reads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "kv/layout.h"
#include "numerics/planes.h"
#include "numerics/weights.h"
#include "ops/ops.h"

namespace hillstar::cuda {

// Tokens whose values were not finite: first[t] is 0, or the code of where that was seen first.
struct BadTokens {
  int32_t* first = nullptr;  // [tokens]
  int32_t code = 0;          // of the kernels that are launched now, not 0
};

// Rows of floats that become planes, and whose values they are: row r lies at data + r / heads *
// token_stride + r % heads * head_stride.
struct FloatRows {
  const float* data = nullptr;  // null: there are none
  RowOwner owner;
  int64_t heads = 1;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// Where kernels run, and what they are shaped for.
struct KernelContext {
  cudaStream_t stream = nullptr;
  int num_multiprocessors = 1;
  int shared_bytes = 99 << 10;  // of a block at most
  BadTokens bad;
  // Of a step whose kernels are timed: keys that all its tokens see, and that they attend to. Else
  // 0: what kernels say of their work leaves these out.
  int64_t seen_keys = 0;
  int64_t attended_keys = 0;
};

// norm_cuda.cu -----------------------------------------------------------------------------------

// y = RmsNorm(x [+ added]), and its planes. REQUIRES: the mixture's slots and weights were there
// before the kernel before this one began.
struct NormTask {
  const float* x = nullptr;      // f32 [rows, n]
  const float* added = nullptr;  // likewise, or null
  Ops::Mixture mixture{};        // joins x as Ops::Mix has it, where rows is not null
  float* sum = nullptr;          // x and what joined it; may be x
  const float* weight = nullptr;
  float eps = 0;
  int64_t rows = 0;
  int64_t n = 0;
  float* y = nullptr;       // may be x, may be null
  ActivationPlanes planes;  // where hi is not null
};
void RmsNorm(const KernelContext& context, const NormTask& task);

// quantise_cuda.cu -------------------------------------------------------------------------------

// Ops::Quantise and QuantiseHeads.
struct QuantiseTask {
  FloatRows x;
  int64_t rows = 0;
  ActivationPlanes planes;
};
void Quantise(const KernelContext& context, const QuantiseTask& task);
// Two of them in one launch.
void QuantiseBoth(const KernelContext& context, const QuantiseTask& a, const QuantiseTask& b);

// rope_cuda.cu -----------------------------------------------------------------------------------

// Ops::MakeQueries.
struct QueriesTask {
  StepTokens step;
  const float* latents = nullptr;
  HeadRows rope;
  QueryShape shape;
  AttentionQueries out;
};
void MakeQueries(const KernelContext& context, const QueriesTask& task);
// Ops::MakeIndexQueries.
struct IndexQueriesTask {
  StepTokens step;
  const float* q = nullptr;
  const float* weights = nullptr;
  QueryShape shape;
  int64_t max_keys = 0;
  IndexQueries out;
};
void MakeIndexQueries(const KernelContext& context, const IndexQueriesTask& task);

// append_cuda.cu: Ops::AppendLatents and AppendIndexKeys -----------------------------------------

struct AppendLatentsTask {
  StepTokens step;
  const float* kv = nullptr;
  const float* norm_weight = nullptr;
  float eps = 0;
  KvRowLayout layout;
  StepPages pages;
};
void AppendLatents(const KernelContext& context, const AppendLatentsTask& task);
struct AppendIndexKeysTask {
  StepTokens step;
  const float* k = nullptr;
  Ops::IndexKeyNorm norm{};
  IndexKeyLayout layout;
  StepPages pages;
};
void AppendIndexKeys(const KernelContext& context, const AppendIndexKeysTask& task);
// Ops::FinishProjections in one launch: a norm with planes beside both.
struct FinishTask {
  NormTask norm;
  AppendLatentsTask latents;
  bool has_index_keys = false;
  AppendIndexKeysTask index_keys;
};
void FinishProjections(const KernelContext& context, const FinishTask& task);

// router_cuda.cu ---------------------------------------------------------------------------------

// Ops::FloatLinear.
void FloatLinear(const KernelContext& context, const FloatLinearSlice& layer);
// Ops::Choose. A token whose logits are not finite chooses the first experts.
void Choose(const KernelContext& context, const RouterChoice& first_token, int64_t num_tokens);
// Ops::Route for a step of one token that is there, in one launch. *ticket is 0, also afterwards;
// `uses`: of the layer, may be null.
// False, and nothing is done, where a row of the router does not fit a block's shared memory.
bool RouteOne(const KernelContext& context, const FloatLinearSlice& router,
              const RouterChoice& choice, const ExpertGroups& groups, uint64_t* uses,
              int32_t* ticket);
// Ops::GroupByExpert.
struct GroupTask {
  const int32_t* experts = nullptr;  // [tokens, chosen]
  int64_t num_tokens = 0;
  const int32_t* live = nullptr;  // null: num_tokens
  int64_t num_experts = 0;
  int64_t num_chosen = 0;
  ExpertGroups groups;
  uint64_t* uses = nullptr;  // of the layer, or null
};
void GroupByExpert(const KernelContext& context, const GroupTask& task);

// combine_cuda.cu --------------------------------------------------------------------------------

// Ops::Mix, AddRows, Concatenate, Embed.
void Mix(const KernelContext& context, const Ops::Mixture& mixture, int64_t num_tokens, int64_t n,
         float* x);
void AddRows(const KernelContext& context, float* x, const float* y, int64_t count);
void Concatenate(const KernelContext& context, const float* a, const float* b, int64_t rows,
                 int64_t n, float* out);
void Embed(const KernelContext& context, const WeightView& table, const int32_t* ids,
           int64_t num_tokens, float* x);

// sample_cuda.cu ---------------------------------------------------------------------------------

// Ops::Draw of up to kDrawRows rows: ids[r] = the token drawn from logits[r] at positions[r] + 1;
// 0, and a bad token, where the row has none. The next step's tokens become these, each a position
// further, where next_ids is given.
inline constexpr int kDrawRows = 64;
inline constexpr int kDrawParts = 64;  // that a row is cut into at most
struct DrawTask {
  const float* logits = nullptr;  // f32 [rows, n]
  int64_t rows = 0;
  int64_t n = 0;
  const DrawParams* draws = nullptr;   // [rows]; null: all greedy, which is one launch instead of 3
  const int64_t* positions = nullptr;  // [rows], where draws is given
  int32_t* ids = nullptr;              // [rows]
  int32_t* next_ids = nullptr;         // [rows], or null
  int64_t* next_positions = nullptr;   // [rows], likewise; may be positions
  uint8_t* scratch = nullptr;          // DrawTaskBytes(), zeros before the first use
};
size_t DrawTaskBytes();
void Draw(const KernelContext& context, const DrawTask& task);

// peak_cuda.cu -----------------------------------------------------------------------------------

// For measuring: reads num_bytes (a multiple of 16); multiplies bytes on all tensor cores for a
// millisecond and returns how many products that is. *sum grows by all words or products; may wrap.
void ReadAll(const KernelContext& context, const uint8_t* bytes, uint64_t num_bytes, int32_t* sum);
double MultiplyAll(const KernelContext& context, int32_t* sum);

// attention_cuda.cu ------------------------------------------------------------------------------

// Ops::Attend. A context may be of any length; what is long is split over the GPU. Errors:
// kUnsupported if 64 rows do not fit a block's shared memory.
struct AttendTask {
  int64_t num_tokens = 0;              // that the launch is shaped for
  const int32_t* live = nullptr;       // tokens there are
  const int64_t* positions = nullptr;  // [tokens]
  int64_t max_positions = 0;           // no position is as large: bounds the keys of a dense token
  int64_t max_keys = 0;                // no token attends to more; 0: max_positions
  AttentionQueries queries;
  int64_t num_heads = 0;
  KvRowLayout layout;
  StepPages pages;
  Selection selection;
  ActivationPlanes out;
  uint8_t* scratch = nullptr;
  size_t scratch_bytes = 0;  // how much is used; contexts that find no room are not split
};
// Bytes of scratch with which tasks of at most these sizes are as fast as they can be.
size_t AttendScratchBytes(int64_t max_tokens, int64_t max_keys, int64_t num_heads,
                          const KvRowLayout& layout);
void Attend(const KernelContext& context, const AttendTask& task);

// indexer_cuda.cu --------------------------------------------------------------------------------

// Ops::Select: counts[t] = 0 for tokens that see all their keys, else a list of max_keys.
struct SelectTask {
  int64_t num_tokens = 0;
  const int32_t* live = nullptr;
  const int64_t* positions = nullptr;
  int64_t max_positions = 0;
  IndexQueries queries;
  int64_t num_heads = 0;
  IndexKeyLayout layout;
  StepPages pages;
  Selection selection;
  uint8_t* scratch = nullptr;
  size_t scratch_bytes = 0;  // at least those of one token
  int32_t* bins = nullptr;   // SelectBinBytes, 0, also afterwards; null: none
};
// Bytes of scratch with which tasks of at most these sizes are as fast as they can be; with less,
// tokens go in rounds.
size_t SelectScratchBytes(int64_t max_tokens, int64_t max_positions);
size_t SelectBinBytes(int64_t max_tokens);
// REQUIRES: of the kernel before (that makes the queries) every thread waits before it ends or
// calls LetNextBegin(), and none writes keys, which are read before it has ended.
void Select(const KernelContext& context, const SelectTask& task);
// Ops::ListAll.
void ListAll(const KernelContext& context, int64_t num_tokens, const int32_t* live,
             const int64_t* positions, const Selection& selection);

// linear_cuda.cu ---------------------------------------------------------------------------------

// Ops::Linear: up to kMaxLayersAtOnce layers side by side, a launch for each format. Panel ranges
// and scratch are ignored. Weights, here and below, may be read before the kernel before has ended.
inline constexpr int kMaxLayersAtOnce = 8;
void Linear(const KernelContext& context, std::span<const LinearSlice> layers);
// Of inputs that are not quantised yet, where a function takes them: every block does that again
// for itself, which for a token or two takes less time than another kernel. Planes that are given
// beside them say their shape and are not touched. REQUIRES: at most kMostFloatTokens tokens.
inline constexpr int kMostFloatTokens = 2;
void LinearOfFloats(const KernelContext& context, const LinearSlice& layer, const FloatRows& x);
// Ops::LinearByHead: y[t, h * head_rows + r] = W_h x[t * heads + h]; W_h's panels begin
// h * NumPanels(head_rows) panels into w.
struct ByHead {
  WeightView w;  // of all heads
  int64_t num_heads = 0;
  int64_t head_rows = 0;
  ActivationPlanes x;  // [T * heads, cols]
  int64_t num_tokens = 0;
  float* y = nullptr;     // [T, heads * head_rows]
  FloatRows floats = {};  // in the place of x
};
void LinearByHead(const KernelContext& context, const ByHead& layer);
// Ops::SwiGlu of one layer.
void SwiGlu(const KernelContext& context, const SwiGluSlice& layer);

// The experts of a layer over the (token, rank) pairs that chose them, and beside them the shared
// expert over all tokens. Rows of the pairs lie together by expert: those of expert e are slots
// begin[e] .. begin[e + 1) - 1, slot s being of token slot_tokens[s].
struct ExpertTask {
  const uint8_t* const* images = nullptr;  // [experts]
  ExpertShape shape;
  int64_t num_experts = 0;
  const int32_t* begin = nullptr;        // [experts + 1]
  const int32_t* slot_tokens = nullptr;  // [num_slots]
  int64_t num_slots = 0;                 // that the launch is shaped for: tokens * rank
  int64_t num_tokens = 0;                // of the step: no expert has more slots
};
// hidden[s] = silu(gate x) * (up x) of slot s's token: planes x [T, D] -> f32 [slots,
// intermediate]; shared: likewise for every token, with x and num_tokens of the slice.
void ExpertsUp(const KernelContext& context, const ExpertTask& task, const ActivationPlanes& x,
               float* hidden, const SwiGluSlice& shared);
// rows[s] = down hidden[s]: planes [slots, intermediate] -> f32 [slots, D]; shared likewise.
// REQUIRES: task as ExpertsUp had it before on this stream: its lists and the experts' weights are
// read before the kernel before this one has ended, but not before that one's predecessor has.
struct HiddenFloats {
  FloatRows slots, shared;
};
void ExpertsDown(const KernelContext& context, const ExpertTask& task, const ActivationPlanes& x,
                 float* rows, const LinearSlice& shared, const HiddenFloats& floats = {});

}  // namespace hillstar::cuda
