#include "engine/open_device.h"

#include <fmt/format.h>

#include <charconv>

#include "core/log.h"
#include "ops/load_cuda_library.h"

namespace hillstar {
namespace {

std::optional<int> ParseIndex(std::string_view text) {
  int index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || end != text.data() + text.size() || index < 0) return std::nullopt;
  return index;
}

// Looks through the GPUs for one that serves.
class GpuSearch {
 public:
  GpuSearch(const DeviceChoice& choice, const EngineOptions& options, const ModelSource& source,
            const EngineSizes& sizes)
      : choice_(choice),
        options_(options),
        sizes_(sizes),
        source_(source),
        found_(LoadCudaLibrary(options.cuda_library)) {}

  bool has_library() const { return found_.is_there; }
  // There is one, and it is not what this program can use: something is broken.
  bool library_refuses() const { return found_.is_there && !found_.library; }

  // Errors: kDevice, kBudget; what `open` throws.
  OpenedDevice Open() {
    if (!found_.library) {
      if (choice_.may_be_cpu) throw Refused(found_.why_not);
      throw Refused(
          fmt::format("--device {} needs the CUDA library, and {}; a build with CUDA "
                      "makes it, --device cpu does without",
                      options_.device, found_.why_not));
    }
    std::string why_not;
    devices_ = found_.library->list(&why_not);
    if (devices_.empty()) {
      throw Refused(fmt::format("there is no GPU to compute on: {}{}", why_not,
                                choice_.may_be_cpu ? "" : " (--device cpu does without)"));
    }
    return choice_.gpu ? OpenOne(*choice_.gpu) : OpenFirst();
  }

 private:
  static Error Refused(const std::string& sentence) { return {ErrorCode::kDevice, sentence}; }

  OpenedDevice OpenFirst() {
    std::optional<Error> first_error;
    for (int i = 0; i < int(devices_.size()); ++i) {
      try {
        return OpenOne(i);
      } catch (const Error& error) {
        // A device that could compute, but for its memory, tells more than one that never can.
        const bool tells_more = first_error && first_error->code() == ErrorCode::kDevice &&
                                error.code() == ErrorCode::kBudget;
        if (!first_error || tells_more) first_error = error;
      }
    }
    throw *first_error;
  }

  OpenedDevice OpenOne(int index) {
    if (size_t(index) >= devices_.size()) {
      throw Refused(fmt::format("there is no cuda:{}: {} found, {} (--device)", index,
                                devices_.size() == 1 ? std::string("one GPU is")
                                                     : fmt::format("{} GPUs are", devices_.size()),
                                devices_.size() == 1
                                    ? std::string("cuda:0")
                                    : fmt::format("cuda:0 to cuda:{}", devices_.size() - 1)));
    }
    const CudaLibrary::Device& device = devices_[size_t(index)];
    if (!device.why_not.empty()) {
      throw Refused(fmt::format("{}, {}, cannot compute: {} (--device)", device.info.id,
                                device.info.name, device.why_not));
    }
    // Before a context is made there, which takes a while.
    CheckedPlan(device.total_bytes, device.info.id);
    OpenedDevice opened;
    opened.backend = found_.library->open({index, options_.memory_limit, options_.eager});
    opened.plan =
        CheckedPlan(opened.backend->memory().AvailableBytes(), device.info.id, &opened.kv_tokens);
    return opened;
  }

  MemoryPlan CheckedPlan(uint64_t available, const std::string& id, int64_t* kv_tokens = nullptr) {
    EngineSizes sizes = sizes_;
    const MemoryPlan plan =
        PlanWithin(source_, DeviceKind::kGpu, found_.library->prepared_bytes, available, &sizes);
    CheckFits(plan, sizes, available, id);
    if (kv_tokens != nullptr) *kv_tokens = sizes.kv_tokens;
    return plan;
  }

  const DeviceChoice& choice_;
  const EngineOptions& options_;
  const EngineSizes& sizes_;
  const ModelSource& source_;
  const CudaLibraryFound found_;
  std::vector<CudaLibrary::Device> devices_;
};

OpenedDevice OpenCpu(const DeviceChoice& choice, const EngineOptions& options,
                     const ModelSource& source, EngineSizes sizes) {
  OpenedDevice opened;
  const uint64_t available = AvailableMemoryBytes();
  opened.plan = PlanWithin(source, DeviceKind::kCpu, CpuPreparedBytes(sizes), available, &sizes);
  opened.kv_tokens = sizes.kv_tokens;
  CheckFits(opened.plan, sizes, available);
  opened.backend =
      std::make_unique<CpuBackend>(*choice.kernels, sizes.num_threads, options.memory_limit);
  return opened;
}

}  // namespace

DeviceChoice ParseDevice(const EngineOptions& options) {
  DeviceChoice choice;
  choice.kernels = &ChooseKernels(options.simd);
  const std::string_view name = options.device;
  choice.may_be_cpu = name == "auto" || name == "cpu";
  // Kernels of a CPU that are named are wanted.
  choice.may_be_gpu = name != "cpu" && !(name == "auto" && options.simd != "auto");
  if (name == "auto" || name == "cpu" || name == "cuda") return choice;
  if (name.starts_with("cuda:")) choice.gpu = ParseIndex(name.substr(5));
  if (choice.gpu) return choice;
  throw Error(ErrorCode::kUsage,
              fmt::format("--device '{}' is none of auto, cpu, cuda and cuda:N (cuda:0)", name));
}

OpenedDevice OpenDevice(const DeviceChoice& choice, const EngineOptions& options,
                        const ModelSource& source, const EngineSizes& sizes) {
  if (choice.may_be_gpu) {
    GpuSearch search(choice, options, source, sizes);
    try {
      return search.Open();
    } catch (const Error& error) {
      if (!choice.may_be_cpu) throw;
      const std::string sentence = fmt::format("the CPU computes: {}", error.what());
      if (search.library_refuses()) {
        LogWarn(sentence);
      } else if (search.has_library()) {
        LogInfo(sentence);
      }
    }
  }
  return OpenCpu(choice, options, source, sizes);
}

}  // namespace hillstar
