// Weights come to a memory that the host cannot touch as they come to the host's, and nothing is
// left of a load that fails.
#include <gtest/gtest.h>

#include "device/far_test_memory.h"
#include "device/host_device.h"
#include "formats/container_test_files.h"
#include "model/tiny_checkpoint_test_files.h"
#include "model/weights.h"

namespace hillstar {
namespace {

void ExpectSameBytes(const DeviceBuffer& host, FarMemory& memory, const DeviceBuffer& far) {
  ASSERT_EQ(host.size(), far.size());
  EXPECT_EQ(std::memcmp(host.data(), memory.Bytes(far.data(), far.size()), far.size()), 0);
}

// fill_bytes: of the far memory.
void ExpectSameWeights(const ModelSource& source, size_t fill_bytes) {
  HostMemory host_memory;
  FarMemory far_memory(1, fill_bytes);
  for (const int threads : {1, 3}) {
    const ModelWeights host = LoadWeights(source, host_memory, threads, {});
    uint64_t last = 0, total = 0;
    const ModelWeights far =
        LoadWeights(source, far_memory, threads, [&](uint64_t done, uint64_t all) {
          last = done;
          total = all;
        });
    EXPECT_EQ(last, total);
    EXPECT_EQ(far_memory.budget().used(), host_memory.budget().used());
    ExpectSameBytes(host.dense_memory, far_memory, far.dense_memory);
    ASSERT_EQ(host.expert_memory.size(), far.expert_memory.size());
    for (size_t l = 0; l < host.expert_memory.size(); ++l) {
      ExpectSameBytes(host.expert_memory[l], far_memory, far.expert_memory[l]);
    }
    EXPECT_EQ(far.head.data - far.dense_memory.data(), host.head.data - host.dense_memory.data());
  }
  EXPECT_EQ(far_memory.budget().used(), 0u);
}

TEST(LoadWeights, AContainerOnADevice) {
  const auto source =
      ModelSource::Open(std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket", "w15", true);
  ASSERT_TRUE(source->is_container());
  ExpectSameWeights(*source, size_t{32} << 20);
  ExpectSameWeights(*source, 100'000);  // less than an expert, and than most tensors
}

struct TinyModel {
  TinyModel() {
    WriteTinyCheckpoint(
        temp.path(),
        MakeTinyTensors(ListTensors(ParseModelConfig(kTinyConfig, ""), {}, true, true), 7),
        kTinyConfig);
    source = ModelSource::Open(temp.path().string(), "w15", true);
  }
  TempFolder temp;
  std::unique_ptr<ModelSource> source;
};

TEST(LoadWeights, ACheckpointOnADevice) {
  const TinyModel model;
  ASSERT_FALSE(model.source->is_container());
  for (const size_t fill_bytes : {size_t{1} << 20, size_t{5000}, size_t{64}}) {
    ExpectSameWeights(*model.source, fill_bytes);
  }
}

TEST(LoadWeights, AfterAnErrorNothingIsLeft) {
  const TinyModel model;
  HostMemory whole;
  const ModelWeights weights = LoadWeights(*model.source, whole, 1, {});
  for (const uint64_t limit : {uint64_t{1000}, whole.budget().used() - 1}) {
    FarMemory memory(1, 5000, limit);
    EXPECT_THROW((void)LoadWeights(*model.source, memory, 2, {}), Error);
    EXPECT_EQ(memory.budget().used(), 0u);
    HostMemory host(limit);
    EXPECT_THROW((void)LoadWeights(*model.source, host, 2, {}), Error);
    EXPECT_EQ(host.budget().used(), 0u);
  }
}

}  // namespace
}  // namespace hillstar
