// Multi-head latent attention, absorbed: queries go into the latent space, keys and values are the
// cached latents. The lightning indexer picks the keys on the layers that have one; the layers
// above reuse its choice.
#include <array>

#include "model/forward.h"

namespace hillstar {

void ForwardPass::Attention(const AttentionWeights& attention, int64_t layer) {
  ProjectDown(attention);
  FinishProjections(attention, layer);
  ProjectQueries(attention);
  if (attention.indexer) SelectKeys(layer);
  AttendAndProject(attention, layer);
}

// normed -> low-rank queries, latent KV, index key and index head weights.
void ForwardPass::ProjectDown(const AttentionWeights& attention) {
  slices_.clear();
  AddKeyProjections(attention);
  slices_.push_back(Matrix(attention.q_a, w_.normed_planes, w_.q_a));
  ops_.Linear(slices_);
  if (attention.indexer && scores_keys()) {
    ops_.FloatLinear({attention.indexer->head_weights, w_.normed, c_.hidden_size, num_tokens(), 0,
                      c_.index_num_heads, w_.index_weights, c_.index_num_heads});
  }
}

void ForwardPass::AddKeyProjections(const AttentionWeights& attention) {
  slices_.push_back(Matrix(attention.kv_a, w_.normed_planes, w_.kv));
  if (!attention.indexer) return;
  slices_.push_back(Matrix(attention.indexer->k, w_.normed_planes, w_.index_k));
}

// Low-rank queries become planes, latents and index keys rows of the cache.
void ForwardPass::FinishProjections(const AttentionWeights& attention, int64_t layer) {
  Ops::Projections p;
  p.q_a = w_.q_a;
  p.q_a_norm = {attention.q_a_norm, c_.lora_norm_eps};
  p.q_lora = c_.q_lora_rank;
  p.q_a_planes = w_.q_a_planes;
  p.kv = w_.kv;
  p.kv_norm = {attention.kv_a_norm, c_.lora_norm_eps};
  p.row = row_layout_;
  p.latents = step_.latents(LatentOffset(layer));
  if (attention.indexer) {
    p.index_k = w_.index_k;
    p.index_norm = IndexNorm(*attention.indexer);
    p.index = index_layout_;
    p.index_keys = step_.index_keys(IndexOffset(layer));
  }
  ops_.FinishProjections(step_, p);
}

Ops::IndexKeyNorm ForwardPass::IndexNorm(const IndexerWeights& indexer) const {
  return {indexer.k_norm_weight, indexer.k_norm_bias, c_.index_norm_eps, c_.qk_rope_dim};
}

void ForwardPass::StoreKeys(const AttentionWeights& attention, int64_t layer) {
  ops_.AppendLatents(step_, w_.kv, attention.kv_a_norm, c_.lora_norm_eps, row_layout_,
                     step_.latents(LatentOffset(layer)));
  if (!attention.indexer) return;
  const Ops::IndexKeyNorm norm = IndexNorm(*attention.indexer);
  ops_.AppendIndexKeys(step_, w_.index_k, norm, index_layout_,
                       step_.index_keys(IndexOffset(layer)));
}

// Low-rank queries -> heads; their nope part is absorbed into the latent space, head by head.
void ForwardPass::ProjectQueries(const AttentionWeights& attention) {
  slices_.assign(1, Matrix(attention.q_b, w_.q_a_planes, w_.q));
  if (attention.indexer && scores_keys()) {
    slices_.push_back(Matrix(attention.indexer->q, w_.q_a_planes, w_.index_q));
  }
  ops_.Linear(slices_);

  const int64_t heads = c_.num_heads, token_stride = heads * c_.qk_dim();
  ops_.LinearByHeadOfFloats({attention.k_absorb, heads, c_.kv_lora_rank},
                            {w_.q, token_stride, c_.qk_dim()}, w_.nope_planes, num_tokens(),
                            w_.latents);
  const QueryShape shape{heads, c_.qk_nope_dim, c_.qk_rope_dim, c_.kv_lora_rank};
  ops_.MakeQueries(step_, w_.latents, {w_.q + c_.qk_nope_dim, token_stride, c_.qk_dim()}, shape,
                   w_.queries);
}

void ForwardPass::SelectKeys(int64_t layer) {
  ops_.EnterStage(Stage::kIndexer);
  if (scores_keys()) {
    const int64_t nope = c_.index_head_dim - c_.qk_rope_dim;
    const QueryShape shape{c_.index_num_heads, nope, c_.qk_rope_dim, 0};
    ops_.MakeIndexQueries(step_, w_.index_q, w_.index_weights, shape, c_.index_topk,
                          w_.index_queries);
    ops_.Select(step_, w_.index_queries, c_.index_num_heads, index_layout_,
                step_.index_keys(IndexOffset(layer)), w_.selection);
  }
  if (mode_ == AttentionMode::kSparse) ops_.ListAll(step_, w_.selection);
}

// Attention over the selected keys, then out of the latent space and back to the residual's width.
void ForwardPass::AttendAndProject(const AttentionWeights& attention, int64_t layer) {
  const int64_t heads = c_.num_heads;
  ops_.EnterStage(Stage::kAttention);
  ops_.Attend(step_, w_.queries, heads, row_layout_, step_.latents(LatentOffset(layer)),
              w_.selection, w_.latent_planes);
  ops_.LinearByHead({attention.v_absorb, heads, c_.v_dim}, w_.latent_planes, num_tokens(),
                    w_.values);
  ops_.LinearOfFloats(w_.values, Matrix(attention.o, w_.value_planes, w_.out));
}

}  // namespace hillstar
