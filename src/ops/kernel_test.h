// What the tests of the operations share: inputs of many kinds, outputs between canaries, and the
// comparison of every level with the reference. Linked into tests only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/planes.h"
#include "numerics/weights.h"
#include "ops/kernels.h"

namespace hillstar {

inline constexpr size_t kTestAlignment = 64;

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(kTestAlignment)));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(kTestAlignment)); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

// A reproducible sequence of numbers (splitmix64), the same on every machine.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next();
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  float Uniform(float low, float high);  // [low, high]
  float Normal();                        // about N(0, 1): a sum of 12 uniform values

 private:
  uint64_t state_;
};

// The kinds of rows that an operation meets, and those that break careless kernels.
enum class ValueKind {
  kNormal,
  kZeros,
  kNegativeZeros,
  kAllEqual,
  kDenormals,
  kOutlier,    // one value of 1e30 among small ones
  kWideRange,  // magnitudes from 2^-60 to 2^10
};
inline constexpr ValueKind kAllValueKinds[] = {
    ValueKind::kNormal,    ValueKind::kZeros,   ValueKind::kNegativeZeros, ValueKind::kAllEqual,
    ValueKind::kDenormals, ValueKind::kOutlier, ValueKind::kWideRange};
const char* ValueKindName(ValueKind kind);
AlignedVector<float> TestValues(ValueKind kind, int64_t n, TestRandom& random);

// A packed matrix and its view. Move only, so that the view stays right.
struct TestMatrix {
  AlignedVector<uint8_t> bytes;
  WeightView view;

  TestMatrix() = default;
  TestMatrix(TestMatrix&&) = default;
  TestMatrix& operator=(TestMatrix&&) = default;
};
// values: f32 [rows, cols].
TestMatrix PackTestMatrix(WeightFormat format, int64_t rows, int64_t cols,
                          const AlignedVector<float>& values);
// Every weight is `hi` (W15: 256 * hi + lo) with scale `scale`, padding included. W4: hi in
// [-8, 7].
TestMatrix ConstantTestMatrix(WeightFormat format, int64_t rows, int64_t cols, int hi, int lo,
                              float scale);

// Planes of [tokens, cols] and their memory. Move only.
struct TestPlanes {
  AlignedVector<int8_t> hi, lo;
  AlignedVector<float> scale;
  AlignedVector<int32_t> sum;
  ActivationPlanes view;

  TestPlanes(int64_t tokens, int64_t cols);
  TestPlanes(TestPlanes&&) = default;
};
// x: f32 [tokens, cols], finite; by the reference's QuantiseGroups.
TestPlanes QuantiseTestRows(int64_t tokens, int64_t cols, const AlignedVector<float>& x);
// Every value is 256 * hi + lo with scale `scale`, but for the padding.
TestPlanes ConstantTestPlanes(int64_t tokens, int64_t cols, int hi, int lo, float scale);

// The buffers that one run of a kernel writes, each poisoned and fenced by canaries on both sides.
class KernelOutputs {
 public:
  // A buffer of `count` elements; T: float, int32_t, int8_t, uint8_t. Aligned to 64 bytes, but for
  // `misalign` elements.
  template <typename T>
  T* Add(std::string name, int64_t count, int64_t misalign = 0) {
    return reinterpret_cast<T*>(AddBytes(std::move(name), sizeof(T), count, misalign));
  }
  // As Add, with the given contents (an in-place operation).
  template <typename T>
  T* AddCopy(std::string name, const AlignedVector<T>& contents) {
    T* data = Add<T>(std::move(name), static_cast<int64_t>(contents.size()));
    if (!contents.empty()) std::memcpy(data, contents.data(), contents.size() * sizeof(T));
    return data;
  }
  // A returned value.
  void AddFlag(std::string name, bool value) { *Add<uint8_t>(std::move(name), 1) = value; }

  // Empty, or the first difference in words ("y[17]: 1.5 (0x3fc00000) instead of ...").
  std::string FirstDifference(const KernelOutputs& expected) const;
  // Empty, or the first canary that was overwritten.
  std::string BrokenCanary() const;

 private:
  struct Buffer {
    std::string name;
    size_t element_bytes;
    size_t first_byte;  // of element 0
    size_t num_bytes;
    AlignedVector<uint8_t> bytes;
  };
  uint8_t* AddBytes(std::string name, size_t element_bytes, int64_t count, int64_t misalign);

  std::vector<Buffer> buffers_;
};

// An element that a kernel left alone holds this byte everywhere.
inline constexpr uint8_t kPoisonByte = 0xa5;
template <typename T>
bool IsPoison(const T& value) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof bytes);
  for (unsigned char b : bytes) {
    if (b != kPoisonByte) return false;
  }
  return true;
}

// Runs `run` with every level's kernels and compares every byte with the reference's; a failure
// names level, shape and first differing element.
using KernelRun = std::function<void(const CpuKernels&, KernelOutputs&)>;
void ExpectLevelsAgree(const std::string& shape, const KernelRun& run);

// The table of the reference level.
const CpuKernels& ReferenceKernels();

}  // namespace hillstar
