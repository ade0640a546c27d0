// Libraries that are missing, broken, of another build, or right.
#include "ops/load_cuda_library.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

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

// Mapping one that is cut short would end this process at the first touch of what is missing.
TEST(LoadCudaLibrary, OneThatWasCutShort) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "hillstar-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string cut = folder + "/libhillstar_cuda.so";
  fs::copy_file(Fake("no_device"), cut);
  const auto whole = fs::file_size(cut);
  for (const auto& [size, says_so] : {std::pair{whole - 1, true},
                                      {whole / 2, true},
                                      {uintmax_t{4096}, true},
                                      {uintmax_t{65}, true},
                                      {uintmax_t{64}, true},
                                      {uintmax_t{63}, false},
                                      {uintmax_t{0}, false}}) {
    fs::resize_file(cut, size);
    const CudaLibraryFound found = LoadCudaLibrary(cut);
    EXPECT_FALSE(found.library);
    EXPECT_TRUE(found.is_there);
    EXPECT_TRUE(found.why_not.starts_with(cut + " cannot be loaded: ")) << found.why_not;
    const std::string not_whole = "the file is not whole: it has " + std::to_string(size) +
                                  " bytes, and its headers tell of ";
    EXPECT_EQ(found.why_not.find(not_whole) != std::string::npos, says_so) << found.why_not;
    fs::remove(cut);
    fs::copy_file(Fake("no_device"), cut);
  }
  EXPECT_TRUE(LoadCudaLibrary(cut).library) << "the whole file";
  fs::remove(cut);  // which is mapped
  fs::copy_file(Fake("no_device"), cut);
  fs::resize_file(cut, whole / 4);
  fs::resize_file(cut, whole);
  EXPECT_EQ(LoadCudaLibrary(cut).why_not,
            cut + " cannot be loaded: the file is not whole: its end is zeros");
  fs::remove_all(folder);
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
