// What computes: one device's memory and operations. A CPU, or a GPU behind libhillstar_cuda.so.
#pragma once

#include <memory>
#include <string>

#include "device/device_memory.h"
#include "ops/ops.h"

namespace hillstar {

struct DeviceInfo {
  std::string id;      // "cpu", "cuda:0"
  std::string name;    // "NVIDIA H200"
  std::string detail;  // for people: "sm_90, 132 multiprocessors, driver 13.0"
};

// Used by one thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual DeviceMemory& memory() = 0;
  virtual Ops& ops() = 0;
};

}  // namespace hillstar
