// The kernels of a CPU, as plain functions over slices. Each level (reference, generic, avx2,
// avx512) defines the same functions in its own namespace; CpuKernels holds the chosen level's.
// All are pure but for what their slice says they write; any thread may call them.
#pragma once

#include <string_view>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/combine/combine.h"
#include "ops/indexer/indexer.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/peak/peak.h"
#include "ops/quantise/quantise.h"
#include "ops/rope/rope.h"
#include "ops/router/router.h"
#include "ops/sample/sample.h"

#define HILLSTAR_DECLARE_KERNELS(level)              \
  namespace level {                                  \
  bool RmsNorm(const NormSlice& s);                  \
  bool LayerNorm(const NormSlice& s);                \
  bool QuantiseGroups(const QuantiseGroupsSlice& s); \
  bool QuantiseRow(const QuantiseRowSlice& s);       \
  bool EncodeE4m3(const EncodeE4m3Slice& s);         \
  void Rope(const RopeSlice& s);                     \
  void Linear(const LinearSlice& s);                 \
  void SwiGlu(const SwiGluSlice& s);                 \
  void FloatLinear(const FloatLinearSlice& s);       \
  void WeightedSum(const WeightedSumSlice& s);       \
  void AddRow(float* x, const float* y, int64_t n);  \
  void IndexScores(const IndexScoreSlice& s);        \
  int64_t CollectAbove(const CollectAboveSlice& s);  \
  void AttendSplit(const AttentionSplit& s);         \
  void MergeSplits(const AttentionMerge& s);         \
  LogitRange FindLargest(const float* x, int64_t n); \
  uint64_t WeighLogits(const WeighSlice& s);         \
  uint64_t SumKept(const KeptSlice& s);              \
  int32_t PeakDots(int64_t rounds);                  \
  }

namespace hillstar {

HILLSTAR_DECLARE_KERNELS(reference)
HILLSTAR_DECLARE_KERNELS(generic)
HILLSTAR_DECLARE_KERNELS(avx2)
HILLSTAR_DECLARE_KERNELS(avx512)

struct CpuKernels {
  const char* level;
  bool (*rms_norm)(const NormSlice&);
  bool (*layer_norm)(const NormSlice&);
  bool (*quantise_groups)(const QuantiseGroupsSlice&);
  bool (*quantise_row)(const QuantiseRowSlice&);
  bool (*encode_e4m3)(const EncodeE4m3Slice&);
  void (*rope)(const RopeSlice&);
  void (*linear)(const LinearSlice&);
  void (*swiglu)(const SwiGluSlice&);
  void (*float_linear)(const FloatLinearSlice&);
  void (*weighted_sum)(const WeightedSumSlice&);
  void (*add_row)(float* x, const float* y, int64_t n);
  void (*index_scores)(const IndexScoreSlice&);
  int64_t (*collect_above)(const CollectAboveSlice&);
  void (*attend_split)(const AttentionSplit&);
  void (*merge_splits)(const AttentionMerge&);
  LogitRange (*find_largest)(const float* logits, int64_t n);
  uint64_t (*weigh_logits)(const WeighSlice&);
  uint64_t (*sum_kept)(const KeptSlice&);
  int32_t (*peak_dots)(int64_t rounds);
};

// The levels that this build has and this processor runs, best first; "reference" comes last.
std::vector<const CpuKernels*> AvailableKernels();
// "auto": the best. Errors: kUsage for an unknown name, kUnsupported for a level that this
// processor or build lacks.
const CpuKernels& ChooseKernels(std::string_view level);

// Writes the values f32 [part.num_values] of one part of a KV row. False if one is not finite.
bool StoreRowPart(const CpuKernels& kernels, const KvRowPart& part, const float* x, uint8_t* row);

}  // namespace hillstar
