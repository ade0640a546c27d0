// The multi-token prediction head: from the hidden state at a position and the token that follows
// it, the token after that.
#include <array>

#include "core/check.h"
#include "model/forward.h"

namespace hillstar {

void ForwardPass::RunMtp(std::span<const BatchToken> following, const float* hidden) {
  CHECK(weights_.mtp.has_value());
  const MtpWeights& mtp = *weights_.mtp;
  const int64_t d = c_.hidden_size;
  Begin(following, /*is_repeated=*/false);
  if (w_.mtp_hidden) {
    ops_.Write(w_.mtp_hidden, hidden, size_t(num_tokens() * d) * sizeof(float));
    hidden = w_.mtp_hidden;
  }
  ops_.EnterLayer(int64_t(weights_.layers.size()));
  // [norm of the embedding | norm of the model's own final norm of the hidden state]
  ops_.Embed(weights_.embed, step_, w_.x);
  ops_.Norm(w_.x, {mtp.enorm, c_.rms_norm_eps}, num_tokens(), d, w_.out);
  ops_.Norm(hidden, {weights_.norm, c_.rms_norm_eps}, num_tokens(), d, w_.normed);
  ops_.Norm(w_.normed, {mtp.hnorm, c_.rms_norm_eps}, num_tokens(), d, w_.normed);
  ops_.Concatenate(w_.out, w_.normed, num_tokens(), d, w_.mtp_input);
  ops_.Quantise(w_.mtp_input, num_tokens(), w_.mtp_planes);
  ops_.Linear(std::array{Matrix(mtp.eh_proj, w_.mtp_planes, w_.x)});
  Layer(mtp.layer, int64_t(weights_.layers.size()));
  CompleteResidual();
  NoteBadTokens();
}

void ForwardPass::MtpLogits(int64_t first, int64_t count, float* out) {
  HeadLogits(weights_.mtp->head_norm, first, count, out);
}

}  // namespace hillstar
