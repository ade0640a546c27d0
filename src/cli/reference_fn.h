// Another implementation of the model, as a function.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace hillstar {

// Positions that a reference hands over at once, at most.
inline constexpr int64_t kReferencePiece = 256;
// Called with the logits f32 [n, vocab] of the positions from `first` on, n <= kReferencePiece.
using ReferenceLogitsFn = std::function<void(int64_t first, std::span<const float> logits)>;
// Computes a text from its first token on and hands over its logits in order.
using ReferenceFn =
    std::function<void(std::span<const int32_t> ids, const ReferenceLogitsFn& on_logits)>;

}  // namespace hillstar
