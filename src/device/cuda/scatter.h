// Packed bytes of a device to where they belong there, and back: one kernel for many spans.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "device/device_memory.h"

namespace hillstar::cuda {

// Asynchronous. `packed`: memory of the device.
void Scatter(std::span<const DeviceSpan> to, const uint8_t* packed, cudaStream_t stream);
void Gather(std::span<const DeviceSpan> from, uint8_t* packed, cudaStream_t stream);

}  // namespace hillstar::cuda
