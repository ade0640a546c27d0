// The contract of DeviceMemory, for the tests of each kind. Linked into tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "device/device_memory.h"
#include "hillstar/error.h"

namespace hillstar {

inline void ExpectContract(DeviceMemory& memory) {
  {
    DeviceBuffer a = memory.Alloc(MemoryTag::kLatentKv, 5000);
    const DeviceBuffer b = memory.Alloc(MemoryTag::kExperts, 300);
    const DeviceBuffer none = memory.Alloc(MemoryTag::kExperts, 0);
    EXPECT_EQ(uintptr_t(a.data()) % 256, 0u);
    EXPECT_EQ(none.size(), 0u);
    EXPECT_EQ(memory.budget().used(MemoryTag::kLatentKv), 5000u);
    EXPECT_EQ(memory.budget().used(), 5300u);
    EXPECT_GE(memory.AvailableBytes(), 1u);

    const std::vector<DeviceSpan> spans = {{a.data() + 7, 3}, {b.data(), 300}, {a.data() + 90, 5}};
    std::vector<uint8_t> packed(308), read(308, 1);
    memory.Read(spans, read.data());
    EXPECT_EQ(read, packed) << "memory begins as zeros";
    std::iota(packed.begin(), packed.end(), uint8_t{1});
    memory.Write(spans, packed.data());
    memory.Read(spans, read.data());
    EXPECT_EQ(read, packed);
    memory.Copy(a.data() + 1000, b.data() + 10, 200);
    memory.Read(std::array{DeviceSpan{a.data() + 1000, 200}}, read.data());
    EXPECT_TRUE(std::equal(read.begin(), read.begin() + 200, packed.begin() + 13));

    memory.Fill(a.data() + 2000, 4, [](uint8_t* host) { std::fill_n(host, 4, uint8_t{9}); });
    memory.Read(std::array{DeviceSpan{a.data() + 1999, 6}}, read.data());
    EXPECT_EQ(std::vector<uint8_t>(read.begin(), read.begin() + 6),
              (std::vector<uint8_t>{0, 9, 9, 9, 9, 0}));
    EXPECT_THROW(memory.Fill(a.data(), 4, [](uint8_t*) { throw Error(ErrorCode::kIo, "gone"); }),
                 Error);
    DeviceBuffer moved = std::move(a);
    EXPECT_EQ(moved.size(), 5000u);
  }
  EXPECT_EQ(memory.budget().used(MemoryTag::kLatentKv), 0u);
  EXPECT_EQ(memory.budget().used(MemoryTag::kExperts), 0u);
}

}  // namespace hillstar
