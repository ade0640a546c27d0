// Finds the device that computes a model. Main thread only.
#pragma once

#include <memory>
#include <optional>

#include "engine/memory_plan.h"
#include "ops/cpu_backend.h"

namespace hillstar {

// What EngineOptions asks for.
struct DeviceChoice {
  bool may_be_cpu = false;
  bool may_be_gpu = false;
  std::optional<int> gpu;  // this one only
  const CpuKernels* kernels = nullptr;
};
// Errors: kUsage for a device or a SIMD level of no such name, kUnsupported for a level that this
// processor does not run.
DeviceChoice ParseDevice(const EngineOptions& options);

struct OpenedDevice {
  std::unique_ptr<Backend> backend;
  MemoryPlan plan;
  int64_t kv_tokens = 0;  // of the sizes, perhaps fewer
};
// A device that can compute and whose free memory holds the plan. Where the CPU serves because a
// GPU that may be there does not, the log says why: as a warning where a CUDA library is there that
// cannot be used.
// Errors: kDevice if the GPU asked for cannot compute, with what is missing; kBudget.
OpenedDevice OpenDevice(const DeviceChoice& choice, const EngineOptions& options,
                        const ModelSource& source, const EngineSizes& sizes);

}  // namespace hillstar
