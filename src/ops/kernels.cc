#include "ops/kernels.h"

#if HILLSTAR_X86
#include <cpuid.h>
#endif

#include <string>

#include "hillstar/error.h"

namespace hillstar {
namespace {

#define HILLSTAR_KERNEL_TABLE(ns)                                                             \
  CpuKernels {                                                                                \
#ns, ns::RmsNorm, ns::LayerNorm, ns::QuantiseGroups, ns::QuantiseRow, ns::EncodeE4m3,     \
        ns::Rope, ns::Linear, ns::SwiGlu, ns::FloatLinear, ns::WeightedSum, ns::AddRow,       \
        ns::IndexScores, ns::CollectAbove, ns::AttendSplit, ns::MergeSplits, ns::FindLargest, \
        ns::WeighLogits, ns::SumKept, ns::PeakDots                                            \
  }

constexpr CpuKernels kReference = HILLSTAR_KERNEL_TABLE(reference);
constexpr CpuKernels kGeneric = HILLSTAR_KERNEL_TABLE(generic);
#if HILLSTAR_X86
constexpr CpuKernels kAvx2 = HILLSTAR_KERNEL_TABLE(avx2);
constexpr CpuKernels kAvx512 = HILLSTAR_KERNEL_TABLE(avx512);

// Clang's __builtin_cpu_supports does not know it.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif

}  // namespace

std::vector<const CpuKernels*> AvailableKernels() {
  std::vector<const CpuKernels*> kernels;
#if HILLSTAR_X86
  if (HasAvx512()) kernels.push_back(&kAvx512);
  if (HasAvx2()) kernels.push_back(&kAvx2);
#endif
  kernels.push_back(&kGeneric);
  kernels.push_back(&kReference);
  return kernels;
}

const CpuKernels& ChooseKernels(std::string_view level) {
  const auto available = AvailableKernels();
  if (level == "auto") return *available.front();
  std::string names;
  for (const CpuKernels* k : available) {
    if (level == k->level) return *k;
    names += names.empty() ? k->level : std::string(", ") + k->level;
  }
  const bool known = level == "avx512" || level == "avx2";
  throw Error(known ? ErrorCode::kUnsupported : ErrorCode::kUsage,
              known ? "this processor or build has no '" + std::string(level) +
                          "' kernels; it has " + names + " (--simd)"
                    : "--simd '" + std::string(level) + "' is none of auto, " + names);
}

bool StoreRowPart(const CpuKernels& kernels, const KvRowPart& part, const float* x, uint8_t* row) {
  float* scale = reinterpret_cast<float*>(row + part.scale_at);
  if (part.format == PartFormat::kE4m3) {
    return kernels.encode_e4m3({x, part.num_values, part.padded, row + part.at, scale});
  }
  int8_t* hi = reinterpret_cast<int8_t*>(row + part.at);
  int8_t* lo = part.format == PartFormat::kTwoPlanes ? hi + part.padded : nullptr;
  return kernels.quantise_row({x, part.num_values, part.padded, hi, lo, scale});
}

}  // namespace hillstar
