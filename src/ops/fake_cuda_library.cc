// For tests only: libraries in the place of libhillstar_cuda.so. FAKE_WRONG_ABI is from another
// build, FAKE_NO_ENTRY is some other library, FAKE_NO_DEVICE finds no GPU, and FAKE_DEVICES has
// five, of which one computes: on the CPU, with what the program that loads it has of the backend.
#include "ops/cuda_library.h"

#ifdef FAKE_DEVICES
#include "ops/cpu_backend.h"
#endif

namespace hillstar {
namespace {

#ifdef FAKE_DEVICES
// Its memory is the host's, of which only some is said to be free.
class FakeMemory : public HostMemory {
 public:
  FakeMemory(uint64_t limit, uint64_t available) : HostMemory(limit), available_(available) {}
  uint64_t AvailableBytes() const override { return available_; }

 private:
  uint64_t available_;
};

// The CPU's, under a GPU's name.
class FakeOps : public CpuOps {
 public:
  using CpuOps::CpuOps;
  std::string_view name() const override { return "cuda"; }
};

class FakeGpu : public Backend {
 public:
  FakeGpu(DeviceInfo info, uint64_t limit, uint64_t available)
      : info_(std::move(info)),
        memory_(limit, available),
        ops_(ChooseKernels("auto"), 2, memory_.budget()) {}
  const DeviceInfo& info() const override { return info_; }
  DeviceMemory& memory() override { return memory_; }
  Ops& ops() override { return ops_; }

 private:
  DeviceInfo info_;
  FakeMemory memory_;
  FakeOps ops_;
};

constexpr uint64_t kSmall = 1'000'000, kLarge = uint64_t{1} << 40;

std::vector<CudaLibrary::Device> List(std::string*) {
  return {{{"cuda:0", "Old GPU", ""}, "it is of compute capability 3.7, and 8.0 is needed", kLarge},
          {{"cuda:1", "Small GPU", ""}, "", kSmall},
          {{"cuda:2", "Busy GPU", ""}, "", kLarge},
          {{"cuda:3", "Good GPU", "as a fake one"}, "", kLarge},
          {{"cuda:4", "Lost GPU", ""}, "", kLarge}};
}

std::unique_ptr<Backend> Open(const CudaDeviceOptions& options) {
  if (options.device == 4) throw Error(ErrorCode::kDevice, "cuda:4 was lost");
  const CudaLibrary::Device device = List(nullptr)[size_t(options.device)];
  return std::make_unique<FakeGpu>(device.info, options.memory_limit,
                                   options.device == 3 ? kLarge : kSmall);
}
#else
std::vector<CudaLibrary::Device> List(std::string* why_not) {
  *why_not = "the NVIDIA driver is not loaded";
  return {};
}
std::unique_ptr<Backend> Open(const CudaDeviceOptions&) { return nullptr; }
#endif

uint64_t PreparedBytes(const Ops::Limits&) { return 0; }

}  // namespace
}  // namespace hillstar

#ifdef FAKE_WRONG_ABI
constexpr int kAbi = 99;
#else
constexpr int kAbi = hillstar::kCudaAbi;
#endif

#ifdef FAKE_NO_ENTRY
#define hillstar_cuda_entry some_other_entry  // NOLINT
#endif
extern "C" int hillstar_cuda_entry(int abi, void* library) {
  if (abi != kAbi) return kAbi;
  *static_cast<hillstar::CudaLibrary*>(library) = {kAbi, hillstar::List, hillstar::PreparedBytes,
                                                   hillstar::Open};
  return 0;
}
