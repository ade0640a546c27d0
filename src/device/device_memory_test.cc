// The host's memory and the tests' far one keep the contract of DeviceMemory.
#include "device/device_memory.h"

#include <gtest/gtest.h>

#include "device/device_memory_test.h"
#include "device/far_test_memory.h"
#include "device/host_device.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

TEST(DeviceMemory, OfTheHost) {
  HostMemory memory;
  EXPECT_TRUE(memory.is_host());
  ExpectContract(memory);
}

TEST(DeviceMemory, FarAway) {
  FarMemory memory;
  EXPECT_FALSE(memory.is_host());
  ExpectContract(memory);
}

TEST(DeviceMemory, FarAwayIsOutOfReach) {
  FarMemory memory;
  const DeviceBuffer buffer = memory.Alloc(MemoryTag::kWorkspace, 64);
  EXPECT_DEATH(*static_cast<volatile uint8_t*>(buffer.data()) = 1, "");
}

TEST(DeviceMemory, TheBudgetIsTheLimit) {
  HostMemory memory(1000);
  const DeviceBuffer buffer = memory.Alloc(MemoryTag::kWorkspace, 600);
  try {
    (void)memory.Alloc(MemoryTag::kExperts, 500);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBudget);
    EXPECT_EQ(std::string(error.what()), "no memory left for experts of 0.00 MB");
  }
}

}  // namespace
}  // namespace hillstar
