// Finds and loads libhillstar_cuda.so. Main thread only.
#pragma once

#include <optional>
#include <string>

#include "ops/cuda_library.h"

namespace hillstar {

struct CudaLibraryFound {
  std::optional<CudaLibrary> library;
  std::string path;       // where it is, or would be
  bool is_there = false;  // whether it serves or not
  std::string why_not;    // a sentence without a stop, where there is no `library`
};

// `path`: the library's file; empty for the one beside the program's file, or else the one that the
// system's loader finds. What is loaded stays so until the process ends.
CudaLibraryFound LoadCudaLibrary(const std::string& path);

}  // namespace hillstar
