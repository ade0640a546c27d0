// The operations that the forward pass is written against; a backend supplies them. All pointers
// are to the backend's memory (AllocFloats and friends give it) unless said otherwise. One thread
// calls an Ops; calls take effect in order.
//
// A CPU computes at once: when a call returns, its results are there. A GPU runs ahead: calls ask
// for work, and Read and TakeBadTokens wait for it.
//
// Shapes: T tokens of a step. A value that is not finite is remembered with its token, see
// TakeBadTokens; what is computed from it is undefined.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hillstar/engine_activity.h"
#include "hillstar/kernel_time.h"
#include "kv/layout.h"
#include "numerics/planes.h"
#include "numerics/weights.h"
#include "ops/linear/linear.h"
#include "ops/router/router.h"
#include "ops/sample/sample.h"

namespace hillstar {

// Integer rows with one scale each: queries.
struct RowPlanes {
  int8_t* hi = nullptr;  // [rows, stride]
  int8_t* lo = nullptr;
  int64_t stride = 0;
};

// A step's tokens as the host has them, in the order of their rows, token t's at index t. The
// arrays stay where they are until the step ends.
struct StepInput {
  int64_t num_tokens = 0;
  const int32_t* ids = nullptr;
  const int64_t* positions = nullptr;
  const PageList* pages = nullptr;  // of the tokens' sequences
  PageAddresses memory;             // of those pages
};

// The same as operations take them. A GPU's step may be shaped for more tokens than there are.
struct StepTokens {
  int64_t num_tokens = 0;
  const int32_t* live = nullptr;  // tokens there are; null: num_tokens
  const int32_t* ids = nullptr;
  const int64_t* positions = nullptr;
  int64_t max_positions = 0;  // no position is as large
  // RoPE's table: f32 [positions, 2 * half_rope], cosines then sines of a position.
  const float* rope_rows = nullptr;
  int64_t half_rope = 0;
  // Of each token's sequence, and where pages lie.
  const PageId* const* page_ids = nullptr;
  uint8_t* const* latent_memory = nullptr;  // [page id]
  uint8_t* const* index_memory = nullptr;   // likewise

  const float* cos(int64_t t) const { return rope_rows + positions[t] * 2 * half_rope; }
  const float* sin(int64_t t) const { return cos(t) + half_rope; }
  // Of a layer whose bytes begin at `offset` in a page.
  StepPages latents(int64_t offset) const { return {page_ids, latent_memory, offset}; }
  StepPages index_keys(int64_t offset) const { return {page_ids, index_memory, offset}; }
};

// The indexer's choice: token t attends to lists[t * max_keys + 0 .. counts[t]), or to everything
// up to its own position if counts[t] is 0.
struct Selection {
  int32_t* lists = nullptr;
  int32_t* counts = nullptr;
  int64_t max_keys = 0;
};

// A matrix of heads inside rows of floats: head h of token t begins at data + t * token_stride + h
// * head_stride.
struct HeadRows {
  const float* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

struct QueryShape {
  int64_t num_heads = 0;
  int64_t nope = 0;  // or the part that RoPE leaves alone
  int64_t rope = 0;
  int64_t latent = 0;
};

// Queries as the attention reads them: planes of latent and rope part (padded as KV rows are) and
// the scales of AttentionQuery, all [T, heads, ...].
struct AttentionQueries {
  RowPlanes planes;
  float* latent_scale = nullptr;
  float* rope_scale = nullptr;
};

struct IndexQueries {
  RowPlanes planes;         // [T * heads, dim]
  float* weight = nullptr;  // [T, heads], with the queries' scales
};

// Rows of (token, rank) pairs, those of one expert together in ascending order of tokens.
struct ExpertGroups {
  int32_t* begin = nullptr;        // [experts + 1]: first slot of each expert
  int32_t* slots = nullptr;        // [T, k]: a pair's slot
  int32_t* slot_tokens = nullptr;  // [T * k]: a slot's token
};

// A MoE layer's experts and the one that every token has.
struct ExpertLayer {
  const uint8_t* const* images = nullptr;  // [experts]
  ExpertShape shape{};
  int64_t num_experts = 0;
  int64_t num_chosen = 0;  // of a token
  // [experts]: tokens that were sent to each so far, in the backend's memory; null: not counted.
  uint64_t* uses = nullptr;
  WeightView shared_gate, shared_up, shared_down;
};

// A matrix for each head: W_h's panels begin h * NumPanels(head_rows) panels into w.
struct HeadMatrices {
  WeightView w;
  int64_t num_heads = 0;
  int64_t head_rows = 0;

  WeightView head(int64_t h) const {
    return {w.format, head_rows, w.cols, w.panel(h * NumPanels(head_rows)), w.panel_stride};
  }
};

// A token at which a value was not finite.
struct BadToken {
  int64_t row = 0;    // of the step as it was given
  int64_t layer = 0;  // see EnterLayer
};

// Where a workspace's arrays come from.
class WorkspaceMemory {
 public:
  virtual ~WorkspaceMemory() = default;
  // 64-byte aligned; lives as long as the object. Errors: kBudget.
  virtual uint8_t* Alloc(size_t num_bytes) = 0;

  float* AllocFloats(int64_t n);
  int32_t* AllocInts(int64_t n);
  int8_t* AllocBytes(int64_t n);
  ActivationPlanes AllocPlanes(int64_t rows, int64_t cols);
  // From the host, in order with the operations; `from` may be reused at once.
  virtual void Write(void* to, const void* from, size_t num_bytes) = 0;
};

// Which token a row of a step's array belongs to: tokens[row] where given, else row /
// rows_per_token.
struct RowOwner {
  int64_t rows_per_token = 1;
  const int32_t* tokens = nullptr;

  constexpr int64_t token(int64_t row) const { return tokens ? tokens[row] : row / rows_per_token; }
};

class Ops : public WorkspaceMemory {
 public:
  // What the operations will be asked for; takes all memory that they need meanwhile, so that none
  // of them allocates or fails. Must come first. Errors: kBudget.
  struct Limits {
    int64_t max_row = 0;        // floats of any row that an operation reads or writes
    int64_t max_tokens = 0;     // of a step
    int64_t max_sequences = 1;  // of a step
    int64_t max_context = 0;    // positions of a sequence
    int64_t max_pages = 0;      // of all sequences
    int64_t max_keys = 0;       // that a token attends to
    int64_t num_logits = 0;     // of a row that a token is drawn from
    bool selects = false;       // Select may be asked for contexts beyond its max_keys
    int64_t num_heads = 0;
    KvRowLayout row;
  };
  virtual void Prepare(const Limits& limits) = 0;
  virtual std::string_view name() const = 0;  // e.g. "avx512"
  // Whether results are there when a call returns, in memory that the host can read and write.
  virtual bool is_host() const = 0;

  // Begins a step. May round its number of tokens up, to at most max_tokens, where `is_repeated`:
  // where RunStep may replay it.
  virtual StepTokens BeginStep(const StepInput& input, bool is_repeated) = 0;
  // Begins the step after one behind which Draw drew: the same sequences, each a position
  // further, with ids that only the backend knows. REQUIRES !is_host().
  virtual StepTokens NextStep(const StepInput& input);
  // The tokens before row `first` have done their part: row 0 of what follows is the step's row
  // `first`. The step was not rounded up.
  virtual StepTokens DropRowsBefore(const StepTokens& step, int64_t first) = 0;
  // Calls `launch`, whose operations depend on nothing of the step but its StepTokens and `part`;
  // or replays what an earlier call for such a step asked for. Without is_repeated it just calls.
  virtual void RunStep(const StepTokens& step, bool is_repeated, int part,
                       const std::function<void()>& launch) = 0;
  // What is computed from here on belongs to the layer, -1 being the head, and its row 0 is row
  // `first` of those that are left of the step.
  virtual void EnterLayer(int64_t layer, int64_t first = 0) = 0;
  // What is computed from here on is of this stage, until another is entered; a step ends with
  // kNone.
  virtual void EnterStage(Stage stage) = 0;
  // Waits until everything is there that was asked for before the last call of this: called once a
  // layer, it lets the device be busy with one while the host asks for the next. Not while a step
  // is captured.
  virtual void Follow() {}
  // Seconds in each stage so far, by Stage; empty where the host does not see them.
  virtual std::span<const double> stage_seconds() const { return {}; }

  // What joins rows x f32 [T, n]: rows f32 [T, n], or a mixture of experts, sum of weights[t, r] *
  // rows[slots[t, r]] + shared[t]; see WeightedSumSlice; or nothing.
  struct Mixture {
    const float* rows = nullptr;
    const int32_t* slots = nullptr;  // [T, k]
    const float* weights = nullptr;  // [T, k]
    int64_t num_ranks = 0;
    const float* shared = nullptr;  // [T, n], or null
  };
  struct Addend {
    const float* rows = nullptr;
    Mixture mixture{};

    bool is_empty() const { return rows == nullptr && mixture.rows == nullptr; }
  };

  // x[t] = row ids[t] of the table. x: f32 [T, cols].
  virtual void Embed(const WeightView& table, const StepTokens& step, float* x) = 0;
  // y = RmsNorm(x). x, y: f32 [rows, n]; y may be x.
  struct NormWeights {
    const float* weight;
    float eps;
  };
  virtual void Norm(const float* x, const NormWeights& norm, int64_t rows, int64_t n, float* y) = 0;
  // x += added, where there is something to add; y = RmsNorm(x), where y is not null; and y's
  // planes.
  virtual void NormPlanes(float* x, const Addend& added, const NormWeights& norm, int64_t rows,
                          int64_t n, float* y, const ActivationPlanes& planes) = 0;
  // x: f32 [rows, planes.cols] -> planes of as many rows. `owner`: whose value a bad one is.
  virtual void Quantise(const float* x, int64_t rows, const ActivationPlanes& planes,
                        const RowOwner& owner = {}) = 0;
  // Independent linear layers side by side, each y[t] = W x[t]: planes [tokens, cols] -> f32
  // [tokens, rows]; panel ranges of the slices are ignored.
  virtual void Linear(std::span<const LinearSlice> layers) = 0;
  // y[t, h] = W_h x[t * heads + h]: planes [T * heads, cols] -> f32 [T, heads, head rows].
  virtual void LinearByHead(const HeadMatrices& heads, const ActivationPlanes& x,
                            int64_t num_tokens, float* y) = 0;
  // Quantise and Linear, QuantiseHeads and LinearByHead, one after the other or at once; layer.x
  // and `planes` are room for the planes, in which then anything may be.
  virtual void LinearOfFloats(const float* x, const LinearSlice& layer);
  virtual void LinearByHeadOfFloats(const HeadMatrices& heads, const HeadRows& x,
                                    const ActivationPlanes& planes, int64_t num_tokens, float* y);
  // y[t] = silu(gate x[t]) * (up x[t]), likewise: planes [tokens, cols] -> f32 [tokens, rows].
  virtual void SwiGlu(std::span<const SwiGluSlice> layers) = 0;
  // y[t] = W x[t] in floats: f32 [tokens, cols] -> f32 [tokens, rows].
  virtual void FloatLinear(const FloatLinearSlice& layer) = 0;
  // out[t] = [a[t] | b[t]]. a, b: f32 [rows, n].
  virtual void Concatenate(const float* a, const float* b, int64_t rows, int64_t n, float* out) = 0;

  // Appends KV rows: kv f32 [T, latent + rope] -> norm of the latent, RoPE, planes, page.
  virtual void AppendLatents(const StepTokens& step, const float* kv, const float* norm_weight,
                             float eps, const KvRowLayout& layout, StepPages pages) = 0;
  // Appends index keys: k f32 [T, dim] -> LayerNorm, RoPE on the first rope dims, planes, page.
  struct IndexKeyNorm {
    const float* weight;
    const float* bias;
    float eps;
    int64_t rope;
  };
  virtual void AppendIndexKeys(const StepTokens& step, const float* k, const IndexKeyNorm& norm,
                               const IndexKeyLayout& layout, StepPages pages) = 0;
  // NormPlanes of the low-rank queries in place, AppendLatents, and AppendIndexKeys where there are
  // index keys: what becomes of a token's projections, one after the other or at once.
  struct Projections {
    float* q_a = nullptr;  // f32 [T, q_lora]
    NormWeights q_a_norm{};
    int64_t q_lora = 0;
    ActivationPlanes q_a_planes;
    const float* kv = nullptr;
    NormWeights kv_norm{};
    KvRowLayout row;
    StepPages latents;
    const float* index_k = nullptr;  // null: none
    IndexKeyNorm index_norm{};
    IndexKeyLayout index;
    StepPages index_keys;
  };
  virtual void FinishProjections(const StepTokens& step, const Projections& p);
  // Planes of the parts that RoPE leaves alone, one row a head: input of the absorbed product.
  virtual void QuantiseHeads(const HeadRows& rows, int64_t num_tokens, int64_t num_heads,
                             const ActivationPlanes& planes) = 0;
  // Absorbed latents f32 [T, heads, latent] and rope parts of q -> queries.
  virtual void MakeQueries(const StepTokens& step, const float* latents, const HeadRows& rope,
                           const QueryShape& shape, const AttentionQueries& out) = 0;
  // Index queries f32 [T, heads, dim] (RoPE on the first rope dims) and head weights [T, heads].
  // Tokens that see at most max_keys keys need none and are left out.
  virtual void MakeIndexQueries(const StepTokens& step, const float* q, const float* weights,
                                const QueryShape& shape, int64_t max_keys,
                                const IndexQueries& out) = 0;
  // Selects the keys of every token whose context exceeds max_keys.
  virtual void Select(const StepTokens& step, const IndexQueries& queries, int64_t num_heads,
                      const IndexKeyLayout& layout, StepPages pages,
                      const Selection& selection) = 0;
  // Attends; the latents of each token and head, f32 [T * heads, latent], go into planes at once.
  virtual void Attend(const StepTokens& step, const AttentionQueries& queries, int64_t num_heads,
                      const KvRowLayout& layout, StepPages pages, const Selection& selection,
                      const ActivationPlanes& out) = 0;
  // Gives every token without a list the list of everything up to its own position, where that is
  // at most max_keys long.
  virtual void ListAll(const StepTokens& step, const Selection& selection) = 0;
  // bytes = 0.
  virtual void Clear(void* bytes, size_t num_bytes) = 0;
  // rows[i] = rows[kept[i]] for ascending `kept`: closes the gaps that tokens leave behind.
  virtual void KeepRows(void* rows, int64_t row_bytes, std::span<const int32_t> kept) = 0;
  // The router's choice for every token: experts int32 [T, k], weights f32 [T, k].
  virtual void Choose(const RouterChoice& first_token, int64_t num_tokens) = 0;
  // Gives every (token, rank) a slot, and adds the tokens that are there to layer.uses. experts:
  // int32 [T, num_chosen].
  virtual void GroupByExpert(const int32_t* experts, const StepTokens& step,
                             const ExpertLayer& layer, const ExpertGroups& groups) = 0;
  // FloatLinear of the router, Choose and GroupByExpert, one after the other or at once.
  // REQUIRES: router.y is first_token.logits.
  virtual void Route(const FloatLinearSlice& router, const RouterChoice& first_token,
                     const StepTokens& step, const ExpertLayer& layer, const ExpertGroups& groups);
  // hidden[slot] = silu(gate x) * (up x) of the slot's token and expert, f32 [T * k, intermediate];
  // shared[t]: of the shared expert, f32 [T, its intermediate].
  virtual void ExpertsUp(const ExpertLayer& layer, const ExpertGroups& groups,
                         const ActivationPlanes& x, int64_t num_tokens, float* hidden,
                         float* shared) = 0;
  // rows[slot] = down hidden[slot], f32 [T * k, D]; out[t] = down shared[t], f32 [T, D].
  virtual void ExpertsDown(const ExpertLayer& layer, const ExpertGroups& groups,
                           const ActivationPlanes& hidden, const ActivationPlanes& shared,
                           int64_t num_tokens, float* rows, float* out) = 0;
  // Quantise of the hidden rows of both and ExpertsDown, likewise.
  struct HiddenRows {
    const float* floats = nullptr;
    ActivationPlanes planes;
  };
  virtual void ExpertsDownOfFloats(const ExpertLayer& layer, const ExpertGroups& groups,
                                   const HiddenRows& hidden, const HiddenRows& shared,
                                   int64_t num_tokens, float* rows, float* out);
  // x += added.
  virtual void Add(const Addend& added, int64_t num_tokens, int64_t n, float* x) = 0;

  // How the tokens behind the step's rows from `first` on are drawn, until it is said again.
  // Returns whether all of them are the likeliest.
  virtual bool SetDraws(int64_t first, std::span<const DrawParams> draws) = 0;
  // Draws the token behind each row from its logits, f32 [rows, n] of the step's rows from `first`
  // on, in memory of the backend; on a GPU these are the ids of the step that NextStep may begin. A
  // row without a token is a bad token. REQUIRES EnterLayer with the same `first`.
  virtual void Draw(const StepTokens& step, int64_t first, int64_t rows, const float* logits,
                    int64_t n) = 0;
  // Asks for the ids that were drawn; TakeDrawn waits for them and for nothing that was asked for
  // later. Of a few questions at once, in their order.
  virtual void AskDrawn() = 0;
  struct Drawn {
    std::vector<int32_t> ids;   // of the rows that are left of the step, of others anything
    std::vector<BadToken> bad;  // as TakeBadTokens has them, where that has to be waited for
  };
  virtual Drawn TakeDrawn() = 0;

  // Between the two, repeated steps are measured kernel by kernel. A CPU has nothing to tell.
  virtual void BeginProfile() {}
  virtual std::vector<KernelTime> EndProfile() { return {}; }
  // Measured now.
  virtual DevicePeaks MeasurePeaks() = 0;

  // To the host; waits for what was asked for.
  virtual void Read(void* to, const void* from, size_t num_bytes) = 0;
  // Memory of the host that Read is fast into, f32 [n], valid until this is called again; null
  // where any is as good.
  virtual float* HostFloats(size_t) { return nullptr; }
  // The tokens of the step at which a value was not finite since the last call, each with the first
  // layer, in ascending order of rows. Waits for what was asked for.
  virtual std::vector<BadToken> TakeBadTokens() = 0;
};

}  // namespace hillstar
