// How the emulated device runs a kernel: at once, or as a graph's call.
#pragma once

#include <functional>

#include "emulated_api.h"

namespace hillstar::emulated {

cudaError_t LaunchCall(cudaStream_t stream, std::function<void()> call);

}  // namespace hillstar::emulated
