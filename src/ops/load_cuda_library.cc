#include "ops/load_cuda_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

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

// What the headers of an ELF file tell, as far as they can be read.
struct ElfExtent {
  uint64_t bytes = 0;  // where the last segment or section header ends
  bool ends_in_zeros = false;
};
// Nothing of another file, which the loader refuses by itself.
ElfExtent ReadExtent(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const auto read = [&](uint64_t from, void* to, size_t bytes) {
    file.seekg(std::streamoff(from));
    return bool(file.read(static_cast<char*>(to), std::streamsize(bytes)));
  };
  Elf64_Ehdr header;
  if (!read(0, &header, sizeof(header)) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return {};
  }
  const auto end_of = [](uint64_t begin, uint64_t bytes) {
    return begin + bytes < begin ? UINT64_MAX : begin + bytes;
  };
  const uint64_t sections = uint64_t{header.e_shnum} * header.e_shentsize;
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  const size_t segment_headers = segments.size() * sizeof(Elf64_Phdr);
  ElfExtent extent{
      std::max(end_of(header.e_shoff, sections), end_of(header.e_phoff, segment_headers))};
  if (!read(header.e_phoff, segments.data(), segment_headers)) return extent;
  for (const Elf64_Phdr& s : segments) {
    extent.bytes = std::max(extent.bytes, end_of(s.p_offset, s.p_filesz));
  }
  std::vector<char> last(header.e_shentsize);
  extent.ends_in_zeros = sections > 0 &&
                         read(header.e_shoff + sections - last.size(), last.data(), last.size()) &&
                         std::ranges::count(last, 0) == std::ssize(last);
  return extent;
}

// Why the file is not to be mapped, or "". One that was cut short, or whose end was never written,
// ends the program where the loader touches what is missing.
std::string WhyNotWhole(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return "";
  const uint64_t size = std::filesystem::file_size(path, none);
  const ElfExtent told = ReadExtent(path);
  if (!none && told.bytes > size) {
    return fmt::format("the file is not whole: it has {} bytes, and its headers tell of {}", size,
                       told.bytes);
  }
  return told.ends_in_zeros ? "the file is not whole: its end is zeros" : "";
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
  const auto cannot_load = [&](const std::string& reason) {
    return WhyNot(named, true, fmt::format("{} cannot be loaded: {}", named, reason));
  };
  // The system's loader alone knows where it looks.
  const std::string not_whole = named == kName ? "" : WhyNotWhole(named);
  if (!not_whole.empty()) return cannot_load(not_whole);
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
  return cannot_load(reason);
}

}  // namespace hillstar
