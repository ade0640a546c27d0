// The CPU as a backend: the host's memory and the kernels of one SIMD level.
#pragma once

#include "device/host_device.h"
#include "ops/backend.h"
#include "ops/cpu_ops.h"

namespace hillstar {

class CpuBackend : public Backend {
 public:
  // memory_limit: bytes that the budget gives at most.
  CpuBackend(const CpuKernels& kernels, int num_threads,
             uint64_t memory_limit = std::numeric_limits<uint64_t>::max());

  const DeviceInfo& info() const override { return info_; }
  HostMemory& memory() override { return memory_; }
  CpuOps& ops() override { return ops_; }

 private:
  DeviceInfo info_;
  HostMemory memory_;
  CpuOps ops_;
};

}  // namespace hillstar
