#include "engine/engine_state.h"

#include <algorithm>

namespace hillstar {
namespace {

// Logits that stay allocated between calls.
constexpr size_t kKeptLogits = size_t{16} << 20;

}  // namespace

float* EngineState::ResizeLogits(size_t n) {
  if (float* floats = ops().HostFloats(n)) return floats;
  if (logits.capacity() > std::max(n, kKeptLogits)) std::vector<float>().swap(logits);
  logits.resize(n);
  return logits.data();
}

}  // namespace hillstar
