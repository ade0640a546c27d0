// One layer, as the model's authors draw it.
#include "model/forward.h"

namespace hillstar {

void ForwardPass::Layer(const LayerWeights& layer, int64_t index) {
  const int64_t tokens = num_tokens(), hidden = c_.hidden_size;
  ops_.EnterLayer(index);
  ops_.EnterStage(Stage::kAttention);
  ops_.NormPlanes(w_.x, TakeAddend(), {layer.input_norm, c_.rms_norm_eps}, tokens, hidden,
                  w_.normed, w_.normed_planes);
  Attention(layer.attention, index);
  ops_.NormPlanes(w_.x, {w_.out}, {layer.post_norm, c_.rms_norm_eps}, tokens, hidden, w_.normed,
                  w_.normed_planes);
  if (layer.dense) {
    DenseMlp(*layer.dense);
  } else {
    MixtureOfExperts(*layer.moe, index);
  }
}

// What later tokens need of this layer, and no more.
void ForwardPass::KeysOfLayer(const LayerWeights& layer, int64_t index) {
  ops_.EnterLayer(index);
  ops_.EnterStage(Stage::kAttention);
  ops_.NormPlanes(w_.x, TakeAddend(), {layer.input_norm, c_.rms_norm_eps}, num_tokens(),
                  c_.hidden_size, w_.normed, w_.normed_planes);
  slices_.clear();
  AddKeyProjections(layer.attention);
  ops_.Linear(slices_);
  StoreKeys(layer.attention, index);
}

}  // namespace hillstar
