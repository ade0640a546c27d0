// Libraries that are missing, broken, of another build, or right.
#include "ops/load_cuda_library.h"

#include <gtest/gtest.h>

namespace hillstar {
namespace {

std::string Fake(const std::string& name) {
  return std::string(FAKE_CUDA_FOLDER) + "/libfake_cuda_" + name + ".so";
}

TEST(LoadCudaLibrary, AMissingFileIsNamed) {
  const CudaLibraryFound found = LoadCudaLibrary("/nowhere/libhillstar_cuda.so");
  EXPECT_FALSE(found.library);
  EXPECT_FALSE(found.is_there);
  EXPECT_EQ(found.why_not, "there is no /nowhere/libhillstar_cuda.so");
}

TEST(LoadCudaLibrary, WithoutAPathTheProgramsFolderIsLookedAt) {
  const CudaLibraryFound found = LoadCudaLibrary("");
  if (found.is_there) GTEST_SKIP() << "there is one, " << found.path;
  EXPECT_NE(found.why_not.find("/load_cuda_library_test"), 0u);
  EXPECT_NE(found.why_not.find("/libhillstar_cuda.so nor a libhillstar_cuda.so that the system's"),
            std::string::npos)
      << found.why_not;
}

TEST(LoadCudaLibrary, WhatIsNoLibrary) {
  const std::string source = std::string(HILLSTAR_SOURCE_DIR) + "/CMakeLists.txt";
  const CudaLibraryFound found = LoadCudaLibrary(source);
  EXPECT_FALSE(found.library);
  EXPECT_TRUE(found.is_there);
  EXPECT_TRUE(found.why_not.starts_with(source + " cannot be loaded: ")) << found.why_not;
}

TEST(LoadCudaLibrary, AnotherBuildsLibrary) {
  const CudaLibraryFound found = LoadCudaLibrary(Fake("wrong_abi"));
  EXPECT_FALSE(found.library);
  EXPECT_TRUE(found.is_there);
  EXPECT_EQ(found.why_not, Fake("wrong_abi") +
                               " has version 99 of the interface and this program version " +
                               std::to_string(kCudaAbi) + "; both must be from one build");
}

TEST(LoadCudaLibrary, ARightOne) {
  const CudaLibraryFound found = LoadCudaLibrary(Fake("no_device"));
  ASSERT_TRUE(found.library) << found.why_not;
  EXPECT_EQ(found.library->abi, kCudaAbi);
  std::string why_not;
  EXPECT_TRUE(found.library->list(&why_not).empty());
  EXPECT_EQ(why_not, "the NVIDIA driver is not loaded");
}

}  // namespace
}  // namespace hillstar
