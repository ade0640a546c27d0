#include "ops/cpu_backend.h"

#include <fmt/format.h>

namespace hillstar {

CpuBackend::CpuBackend(const CpuKernels& kernels, int num_threads, uint64_t memory_limit)
    : info_{"cpu", "CPU",
            fmt::format("{}, {} thread{}", kernels.level, num_threads,
                        num_threads == 1 ? "" : "s")},
      memory_(memory_limit),
      ops_(kernels, num_threads, memory_.budget()) {}

}  // namespace hillstar
