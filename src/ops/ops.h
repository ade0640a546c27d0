// The operations that the forward pass is written against; a backend supplies them. All pointers
// are to the backend's memory (AllocFloats and friends give it). One thread calls an Ops; calls
// take effect in order; results may be read on the host after Finish().
//
// Shapes: T tokens of a step. A value that is not finite is remembered with its token, see
// TakeBadTokens; what is computed from it is undefined.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kv/layout.h"
#include "numerics/planes.h"
#include "numerics/weights.h"
#include "ops/linear/linear.h"
#include "ops/router/router.h"

namespace hillstar {

// Integer rows with one scale each: queries.
struct RowPlanes {
  int8_t* hi = nullptr;  // [rows, stride]
  int8_t* lo = nullptr;
  int64_t stride = 0;
};

// The tokens of a step, in the order of their rows.
struct StepTokens {
  int64_t num_tokens = 0;
  const int32_t* ids = nullptr;
  const int64_t* positions = nullptr;
  // RoPE's table: f32 [positions, 2 * half_rope], cosines then sines of a position.
  const float* rope_rows = nullptr;
  int64_t half_rope = 0;

  const float* cos(int64_t t) const { return rope_rows + positions[t] * 2 * half_rope; }
  const float* sin(int64_t t) const { return cos(t) + half_rope; }
};

// Where a layer's KV rows of each token's sequence lie: tables[t] is token t's.
using TokenPages = std::span<const PageTable>;

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
  float* scale = nullptr;   // [T, heads]
  float* weight = nullptr;  // [T, heads]
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
    int64_t max_row = 0;      // floats of any row that an operation reads or writes
    int64_t max_tokens = 0;   // of a step
    int64_t max_context = 0;  // positions of a sequence
    int64_t max_keys = 0;     // that a token attends to
    bool selects = false;     // Select may be asked for contexts beyond its max_keys
    int64_t num_heads = 0;
    KvRowLayout row;
  };
  virtual void Prepare(const Limits& limits) = 0;
  virtual std::string_view name() const = 0;  // e.g. "avx512"

  // x[t] = row ids[t] of the table. x: f32 [T, cols].
  virtual void Embed(const WeightView& table, const StepTokens& step, float* x) = 0;
  // y = RmsNorm(x). x, y: f32 [rows, n]; y may be x.
  struct NormWeights {
    const float* weight;
    float eps;
  };
  virtual void Norm(const float* x, const NormWeights& norm, int64_t rows, int64_t n, float* y) = 0;
  // x: f32 [rows, planes.cols] -> planes of as many rows. `owner`: whose value a bad one is.
  virtual void Quantise(const float* x, int64_t rows, const ActivationPlanes& planes,
                        const RowOwner& owner = {}) = 0;
  // Independent linear layers side by side, each y[t] = W x[t]: planes [tokens, cols] -> f32
  // [tokens, rows]; panel ranges of the slices are ignored.
  virtual void Linear(std::span<const LinearSlice> layers) = 0;
  // y[t] = silu(gate x[t]) * (up x[t]), likewise: planes [tokens, cols] -> f32 [tokens, rows].
  virtual void SwiGlu(std::span<const SwiGluSlice> layers) = 0;
  // y[t] = W x[t] in floats: f32 [tokens, cols] -> f32 [tokens, rows].
  virtual void FloatLinear(const FloatLinearSlice& layer) = 0;
  // out[t] = [a[t] | b[t]]. a, b: f32 [rows, n].
  virtual void Concatenate(const float* a, const float* b, int64_t rows, int64_t n, float* out) = 0;
  // x += y. x, y: f32 [rows, n].
  virtual void AddRows(float* x, const float* y, int64_t rows, int64_t n) = 0;

  // Appends KV rows: kv f32 [T, latent + rope] -> norm of the latent, RoPE, planes, page.
  virtual void AppendLatents(const StepTokens& step, const float* kv, const float* norm_weight,
                             float eps, const KvRowLayout& layout, TokenPages pages) = 0;
  // Appends index keys: k f32 [T, dim] -> LayerNorm, RoPE on the first rope dims, planes, page.
  struct IndexKeyNorm {
    const float* weight;
    const float* bias;
    float eps;
    int64_t rope;
  };
  virtual void AppendIndexKeys(const StepTokens& step, const float* k, const IndexKeyNorm& norm,
                               const IndexKeyLayout& layout, TokenPages pages) = 0;
  // Planes of the parts that RoPE leaves alone, one row a head: input of the absorbed product.
  virtual void QuantiseHeads(const HeadRows& rows, int64_t num_tokens, int64_t num_heads,
                             const ActivationPlanes& planes) = 0;
  // Absorbed latents f32 [T, heads, latent] and rope parts of q -> queries.
  virtual void MakeQueries(const StepTokens& step, const float* latents, const HeadRows& rope,
                           const QueryShape& shape, const AttentionQueries& out) = 0;
  // Index queries f32 [T, heads, dim] (RoPE on the first rope dims) and head weights [T, heads].
  virtual void MakeIndexQueries(const StepTokens& step, const float* q, const float* weights,
                                const QueryShape& shape, const IndexQueries& out) = 0;
  // Selects the keys of every token whose context exceeds max_keys.
  virtual void Select(const StepTokens& step, const IndexQueries& queries, int64_t num_heads,
                      const IndexKeyLayout& layout, TokenPages pages,
                      const Selection& selection) = 0;
  // Attends; the latents of each token and head, f32 [T * heads, latent], go into planes at once.
  virtual void Attend(const StepTokens& step, const AttentionQueries& queries, int64_t num_heads,
                      const KvRowLayout& layout, TokenPages pages, const Selection& selection,
                      const ActivationPlanes& out) = 0;
  // Gives every token without a list the list of everything up to its own position, where that is
  // at most max_keys long.
  virtual void ListAll(const StepTokens& step, const Selection& selection) = 0;
  // rows[i] = rows[kept[i]] for ascending `kept`: closes the gaps that tokens leave behind.
  virtual void KeepRows(void* rows, int64_t row_bytes, std::span<const int32_t> kept) = 0;
  // The router's choice for every token: experts int32 [T, k], weights f32 [T, k].
  virtual void Choose(const RouterChoice& first_token, int64_t num_tokens) = 0;
  // x[t] += sum of weights[t, r] * rows[slots[t, r]] + shared[t]; see WeightedSumSlice.
  struct Mixture {
    const float* rows;
    const int32_t* slots;  // [T, k]
    const float* weights;  // [T, k]
    int64_t num_ranks;
    const float* shared;  // [T, n], or null
  };
  virtual void Mix(const Mixture& mixture, int64_t num_tokens, int64_t n, float* x) = 0;

  // Waits for what was asked for. Then results may be read.
  virtual void Finish() = 0;
  // The rows of a step's tokens at which a value was not finite since the last call, ascending.
  virtual std::vector<int64_t> TakeBadTokens() = 0;
};

}  // namespace hillstar
