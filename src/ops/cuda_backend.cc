// The entry point of libhillstar_cuda.so: which GPUs there are, and one of them as a backend.
#include <fmt/format.h>

#include "device/cuda/launch.cuh"
#include "hillstar/error.h"
#include "ops/cuda_library.h"
#include "ops/cuda_ops.h"

namespace hillstar::cuda {
namespace {

// cp.async and integer tensor cores with 32 products.
constexpr int kLeastCompute = 80;

int Compute(const cudaDeviceProp& device) { return 10 * device.major + device.minor; }

std::string VersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

CudaLibrary::Device Describe(int number) {
  CudaLibrary::Device device;
  device.info.id = fmt::format("cuda:{}", number);
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, number);
      error != cudaSuccess) {
    device.info.name = "an unknown GPU";
    device.why_not = cudaGetErrorString(error);
    return device;
  }
  int driver = 0;
  cudaDriverGetVersion(&driver);
  device.info.name = properties.name;
  device.info.detail =
      fmt::format("sm_{}, {} multiprocessors, driver of CUDA {}", Compute(properties),
                  properties.multiProcessorCount, VersionText(driver));
  device.total_bytes = properties.totalGlobalMem;
  if (Compute(properties) < kLeastCompute) {
    device.why_not =
        fmt::format("its compute capability is {}.{}, and {}.{} is needed", properties.major,
                    properties.minor, kLeastCompute / 10, kLeastCompute % 10);
  }
  return device;
}

std::vector<CudaLibrary::Device> ListDevices(std::string* why_not) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (error != cudaSuccess || count == 0) {
    *why_not = driver == 0        ? "no NVIDIA driver is installed"
               : driver < runtime ? fmt::format(
                                        "the NVIDIA driver serves CUDA {} at most, and {} "
                                        "is needed",
                                        VersionText(driver), VersionText(runtime))
                                  : cudaGetErrorString(error ? error : cudaErrorNoDevice);
    cudaGetLastError();
    return {};
  }
  std::vector<CudaLibrary::Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(Describe(i));
  return devices;
}

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const CudaDeviceOptions& options)
      : info_(Describe(options.device).info),
        memory_(options.device, options.memory_limit),
        ops_(memory_, PropertiesOf(options.device), options.eager) {}

  const DeviceInfo& info() const override { return info_; }
  DeviceMemory& memory() override { return memory_; }
  Ops& ops() override { return ops_; }

 private:
  static cudaDeviceProp PropertiesOf(int device) {
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, device), "asking for its properties");
    return properties;
  }

  DeviceInfo info_;
  CudaMemory memory_;
  CudaOps ops_;
};

std::unique_ptr<Backend> OpenBackend(const CudaDeviceOptions& options) {
  return std::make_unique<CudaBackend>(options);
}

}  // namespace
}  // namespace hillstar::cuda

extern "C" __attribute__((visibility("default"))) int hillstar_cuda_entry(int abi, void* library) {
  if (abi != hillstar::kCudaAbi) return hillstar::kCudaAbi;
  auto* entry = static_cast<hillstar::CudaLibrary*>(library);
  entry->abi = hillstar::kCudaAbi;
  entry->list = hillstar::cuda::ListDevices;
  entry->prepared_bytes = hillstar::cuda::CudaOps::PreparedBytes;
  entry->open = hillstar::cuda::OpenBackend;
  return 0;
}
