// The one entry point of libhillstar_cuda.so, which is loaded at run time: a program runs with and
// without a GPU, and without CUDA installed.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "ops/cuda_abi.h"  // kCudaAbi: changes with this header and all that it includes

namespace hillstar {

struct CudaDeviceOptions {
  int device = 0;
  // Bytes that the budget of the device's memory gives at most.
  uint64_t memory_limit = std::numeric_limits<uint64_t>::max();
  bool eager = false;  // no graphs: operation by operation, for debugging
};

struct CudaLibrary {
  int abi = 0;
  // The devices that can compute, in CUDA's order, others with the reason in `why_not`.
  struct Device {
    DeviceInfo info;
    std::string why_not;  // empty where it can
    uint64_t total_bytes = 0;
  };
  // Empty where there is none; then `why_not` says so: no driver, a driver that is too old.
  std::vector<Device> (*list)(std::string* why_not) = nullptr;
  // What Ops::Prepare takes of a GPU's memory.
  uint64_t (*prepared_bytes)(const Ops::Limits& limits) = nullptr;
  // Errors: kDevice, kUnsupported, kBudget. REQUIRES: a device that can compute.
  std::unique_ptr<Backend> (*open)(const CudaDeviceOptions& options) = nullptr;
};

}  // namespace hillstar

// Fills *library where abi is kCudaAbi and returns 0; else returns the library's own ABI version
// and touches nothing. `library`: hillstar::CudaLibrary*.
extern "C" int hillstar_cuda_entry(int abi, void* library);
