#include "ops/load_cuda_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

namespace hillstar {
namespace {

constexpr const char* kName = "libhillstar_cuda.so";
constexpr const char* kEntry = "hillstar_cuda_entry";

bool Exists(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::exists(path, none);
}

std::string BesideTheProgram() {
  std::error_code none;
  return (std::filesystem::read_symlink("/proc/self/exe", none).parent_path() / kName).string();
}

CudaLibraryFound WhyNot(const std::string& path, bool is_there, const std::string& why_not) {
  return {std::nullopt, path, is_there, why_not};
}

CudaLibraryFound Enter(void* handle, const std::string& path) {
  const auto entry =
      reinterpret_cast<decltype(&hillstar_cuda_entry)>(dlsym(handle, kEntry));  // NOLINT
  if (entry == nullptr) {
    return WhyNot(path, true,
                  fmt::format("{} is no CUDA library of Hillstar: it lacks {}", path, kEntry));
  }
  CudaLibrary library;
  const int abi = entry(kCudaAbi, &library);
  if (abi == 0 && library.abi == kCudaAbi && library.list && library.open) {
    return {library, path, true, ""};
  }
  return WhyNot(path, true,
                fmt::format("{} has version {} of the interface and this program version {}; both "
                            "must be from one build",
                            path, abi != 0 ? abi : library.abi, kCudaAbi));
}

}  // namespace

CudaLibraryFound LoadCudaLibrary(const std::string& path) {
  const std::string beside = BesideTheProgram();
  const std::string named = !path.empty()    ? std::filesystem::absolute(path).string()
                            : Exists(beside) ? beside
                                             : kName;
  if (!path.empty() && !Exists(path)) {
    return WhyNot(path, false, fmt::format("there is no {}", path));
  }
  // Local: its symbols must not stand in for the program's own of the same names. It is never
  // closed: objects of its types live as long as an engine.
  void* handle = dlopen(named.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return Enter(handle, named);
  const char* said = dlerror();
  const std::string reason = said ? said : "no reason given";
  // The loader begins with what it could not open: a library that is missing, or one that it needs.
  if (named == kName && reason.starts_with(std::string(kName) + ": cannot open shared object")) {
    return WhyNot(beside, false,
                  fmt::format("this program has no CUDA library: neither {} nor a {} that the "
                              "system's loader finds",
                              beside, kName));
  }
  return WhyNot(named, true, fmt::format("{} cannot be loaded: {}", named, reason));
}

}  // namespace hillstar
