// One layer, as the model's authors draw it.
#include "model/forward.h"

namespace hillstar {

void ForwardPass::Layer(const LayerWeights& layer, int64_t index) {
  ops_.Norm(w_.x, {layer.input_norm, c_.rms_norm_eps}, num_tokens(), c_.hidden_size, w_.normed);
  ops_.Quantise(w_.normed, num_tokens(), w_.normed_planes);
  Attention(layer.attention, index);
  ops_.AddRows(w_.x, w_.out, num_tokens(), c_.hidden_size);

  ops_.Norm(w_.x, {layer.post_norm, c_.rms_norm_eps}, num_tokens(), c_.hidden_size, w_.normed);
  ops_.Quantise(w_.normed, num_tokens(), w_.normed_planes);
  if (layer.dense) {
    DenseMlp(*layer.dense);
  } else {
    MixtureOfExperts(*layer.moe, index);
  }
  NoteBadTokens(index);
}

// What later tokens need of this layer, and no more.
void ForwardPass::KeysOfLayer(const LayerWeights& layer, int64_t index) {
  ops_.Norm(w_.x, {layer.input_norm, c_.rms_norm_eps}, num_tokens(), c_.hidden_size, w_.normed);
  ops_.Quantise(w_.normed, num_tokens(), w_.normed_planes);
  slices_.clear();
  AddKeyProjections(layer.attention);
  ops_.Linear(slices_);
  StoreKeys(layer.attention, index);
  NoteBadTokens(index);
}

}  // namespace hillstar
