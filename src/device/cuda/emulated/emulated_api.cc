#include "emulated_api.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "emulated_launch.h"

using Call = std::function<void()>;

struct EmulatedGraph {
  std::vector<Call> calls;
};
struct EmulatedStream {
  EmulatedGraph* capture = nullptr;
};
struct EmulatedEvent {
  std::chrono::steady_clock::time_point time;
};

namespace {

constexpr size_t kAlign = 256;

hillstar::emulated::Device device;
bool lost = false;
cudaError_t last_error = cudaSuccess;
std::mutex mutex;  // of allocations
std::map<void*, size_t> allocations;
size_t used_bytes = 0;

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
cudaError_t Usable() { return Return(lost ? cudaErrorUnknown : cudaSuccess); }

// At once, or into the graph that the stream captures.
cudaError_t Do(cudaStream_t stream, Call call) {
  if (Usable() != cudaSuccess) return cudaErrorUnknown;
  if (stream && stream->capture) {
    stream->capture->calls.push_back(std::move(call));
  } else {
    call();
  }
  return Usable();
}

}  // namespace

extern "C" hillstar::emulated::Device* hillstar_emulated_device() {
  lost = false;
  device.used_bytes = [] { return used_bytes; };
  return &device;
}

namespace hillstar::emulated {

cudaError_t LaunchCall(cudaStream_t stream, std::function<void()> call) {
  return Do(stream, [call = std::move(call)] {
    if (lost) return;
    if (device.launches_until_lost == 0) {
      lost = true;
      return;
    }
    if (device.launches_until_lost > 0) --device.launches_until_lost;
    call();
  });
}

}  // namespace hillstar::emulated

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorDevicesUnavailable: return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorUnknown: break;
  }
  return "unknown error";
}
const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
cudaError_t cudaGetLastError() {
  const cudaError_t error = lost ? cudaErrorUnknown : last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (!device.has_driver) return Return(cudaErrorInsufficientDriver);
  if (device.driver_version < 13000) return Return(cudaErrorInsufficientDriver);
  if (device.num_devices == 0) return Return(cudaErrorNoDevice);
  *count = device.num_devices;
  return Usable();
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int number) {
  if (number < 0 || number >= device.num_devices) return Return(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "emulated GPU");
  p->major = device.major;
  p->minor = device.minor;
  p->multiProcessorCount = device.num_multiprocessors;
  p->l2CacheSize = 4 << 20;
  p->totalGlobalMem = device.total_bytes;
  p->sharedMemPerBlockOptin = 227 << 10;
  p->sharedMemPerMultiprocessor = 228 << 10;
  return Usable();
}
cudaError_t cudaSetDevice(int number) {
  return number < device.num_devices ? Usable() : Return(cudaErrorInvalidDevice);
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = device.has_driver ? device.driver_version : 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(mutex);
  *total = device.total_bytes;
  *free = device.total_bytes - used_bytes;
  return Usable();
}

cudaError_t cudaMalloc(void** p, size_t num_bytes) {
  if (Usable() != cudaSuccess) return cudaErrorUnknown;
  const std::lock_guard lock(mutex);
  if (device.allocations_until_failure == 0 || num_bytes > device.total_bytes - used_bytes) {
    return Return(cudaErrorMemoryAllocation);
  }
  if (device.allocations_until_failure > 0) --device.allocations_until_failure;
  *p = std::aligned_alloc(kAlign, (num_bytes + kAlign - 1) / kAlign * kAlign);
  std::memset(*p, 0xa5, num_bytes);  // a device's memory holds anything
  allocations[*p] = num_bytes;
  used_bytes += num_bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(p);
  if (found == allocations.end()) return p ? Return(cudaErrorInvalidValue) : cudaSuccess;
  used_bytes -= found->second;
  allocations.erase(found);
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t num_bytes, unsigned) {
  *p = std::aligned_alloc(kAlign, (num_bytes + kAlign - 1) / kAlign * kAlign);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  std::free(p);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, n, kind, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind,
                            cudaStream_t stream) {
  // A GPU may write what it has yet to read.
  const auto distance = static_cast<uint8_t*>(to) - static_cast<const uint8_t*>(from);
  if (distance != 0 && size_t(std::abs(distance)) < n) return Return(cudaErrorInvalidValue);
  return Do(stream, [=] { std::memmove(to, from, n); });
}
cudaError_t cudaMemset(void* to, int value, size_t n) {
  return cudaMemsetAsync(to, value, n, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t n, cudaStream_t stream) {
  return Do(stream, [=] { std::memset(to, value, n); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new EmulatedStream;
  return Usable();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return Usable(); }
cudaError_t cudaDeviceSynchronize() { return Usable(); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Do(stream, [event] { event->time = std::chrono::steady_clock::now(); });
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return Usable(); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return Usable(); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->capture) return Return(cudaErrorInvalidValue);
  stream->capture = new EmulatedGraph;
  return Usable();
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = stream->capture;
  stream->capture = nullptr;
  return *graph ? Usable() : Return(cudaErrorInvalidValue);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new EmulatedGraph(*graph);
  return Usable();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const Call& call : executable->calls) {
    if (const cudaError_t error = Do(stream, call); error != cudaSuccess) return error;
  }
  return Usable();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
