// Every tensor of a model, in one table: its name in a container, the checkpoint tensors it is
// made of, and its shape. The converter, the loader and `inspect` all walk this table.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "model/config.h"
#include "numerics/weights.h"

namespace hillstar {

// Which formats a model's tensors take. Norms, router and indexer head weights are always f32.
struct FormatPlan {
  WeightFormat experts = WeightFormat::kW4;  // routed experts
  WeightFormat dense = WeightFormat::kW8;    // everything else
  WeightFormat mtp_experts = WeightFormat::kW4;
};

// How a tensor's rows come from the checkpoint's.
enum class TensorRecipe {
  kRows,     // the checkpoint's rows as they are
  kVector,   // f32 [1, n]
  kAbsorbK,  // per head h: transpose of kv_b's K rows of h: row (h, latent l) = kv_b[h][.., l]
  kAbsorbV,  // kv_b's V rows of every head
};

// A head of kAbsorbK and kAbsorbV starts a new panel: where kv_lora_rank or v_dim is not a multiple
// of kPanelRows, rows of zeros follow each head's, so that row (h, i) is row
// h * PaddedHeadRows(head_rows) + i and rows = num_heads * PaddedHeadRows(head_rows).
constexpr int64_t PaddedHeadRows(int64_t head_rows) { return NumPanels(head_rows) * kPanelRows; }

struct TensorSpec {
  std::string name;    // in the container, e.g. "layers.3.q_a"
  std::string source;  // in the checkpoint, e.g. "model.layers.3.self_attn.q_a_proj.weight"
  std::vector<int64_t> source_shape;
  TensorRecipe recipe = TensorRecipe::kRows;
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t num_heads = 0;  // kAbsorbK, kAbsorbV
  int64_t head_rows = 0;  // rows of a head without padding: kv_lora_rank, v_dim
  size_t num_bytes() const { return MatrixBytes(format, rows, cols); }
};

// The routed experts of one layer.
struct ExpertLayerSpec {
  int64_t layer = 0;
  int64_t num_experts = 0;
  ExpertShape shape{};
  // Names of an expert's gate, up and down matrices in the checkpoint.
  std::string gate(int64_t expert) const;
  std::string up(int64_t expert) const;
  std::string down(int64_t expert) const;
};

struct TensorTable {
  std::vector<TensorSpec> dense;
  std::vector<ExpertLayerSpec> experts;
  uint64_t dense_bytes() const;   // each tensor rounded up to whole pages
  uint64_t expert_bytes() const;  // whole images
  bool HasIndexer(int64_t layer) const;
};

// The table of a model. With `with_mtp` the MTP layer is layer config.num_layers;
// `mtp_has_indexer` tells whether it brings indexer weights (else it attends to everything).
TensorTable ListTensors(const ModelConfig& config, const FormatPlan& plan, bool with_mtp,
                        bool mtp_has_indexer);

// Name of the indexer tensor that decides `mtp_has_indexer`.
std::string MtpIndexerName(const ModelConfig& config);
// True if the configuration asks for an indexer and the checkpoint is one of the predecessor's that
// brings no indexer tensor at all: attention is then dense everywhere, and the table is listed with
// index_num_heads = 0. A checkpoint with some of them must have all (ExpectAll refuses it).
bool LacksIndexer(const ModelConfig& config, const Checkpoint& checkpoint);

// Runs jobs [0, n) on some threads; converters and loaders pass a pool's, tests a plain loop.
using ParallelFor = std::function<void(int64_t n, const std::function<void(int64_t)>& job)>;

// Reads a tensor from a checkpoint and packs it: spec.num_bytes() bytes at `out`.
// Checkpoint::Expect must have been called for spec.source. Errors as Checkpoint::ReadRows.
// Holds at most a few MB a running job beside `out`. A job that throws stops nothing by itself: the
// first error is thrown when all jobs have ended, so `parallel` needs no care for exceptions.
void PackTensor(const Checkpoint& checkpoint, const TensorSpec& spec, const ParallelFor& parallel,
                uint8_t* out);
// A part of a tensor: its panels [first, first + count) (of 16 rows each; the last may have fewer),
// PanelRangeBytes bytes at `out`, in the calling thread.
void PackPanels(const Checkpoint& checkpoint, const TensorSpec& spec, int64_t first, int64_t count,
                uint8_t* out);
size_t PanelRangeBytes(const TensorSpec& spec, int64_t first, int64_t count);
// Panels that are packed together without reading the checkpoint twice (a head's, where a tensor
// has heads), at least `min_bytes` of f32 rows where the tensor has as many.
int64_t PanelsPerJob(const TensorSpec& spec, size_t min_bytes);
// Packs one expert's image: ExpertImageBytes(shape) bytes.
void PackExpert(const Checkpoint& checkpoint, const ExpertLayerSpec& layer, int64_t expert,
                uint8_t* out);
// Calls checkpoint.Expect for every source of the table, so that a missing or misshapen tensor is
// found before long work starts.
void ExpectAll(const TensorTable& table, Checkpoint& checkpoint);

}  // namespace hillstar
