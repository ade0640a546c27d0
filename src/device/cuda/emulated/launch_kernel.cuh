// Kernels on the emulated device.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>

#include "emulated_launch.h"

namespace hillstar::cuda {

inline uint8_t* DynamicShared() { return emulated::DynamicSharedBytes(); }

template <typename... Parameters, typename... Arguments>
void Launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape,
            cudaStream_t stream, Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if (CurrentObserver()) CurrentObserver()->BeforeLaunch(name, shape, stream);
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  Check(emulated::LaunchCall(stream,
                             [=] {
                               emulated::RunGrid(name, shape.grid, shape.block, shape.shared_bytes,
                                                 [&] { std::apply(kernel, values); });
                             }),
        name);
}

}  // namespace hillstar::cuda
