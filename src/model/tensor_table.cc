#include "model/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>

#include "core/check.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// f32 rows that a job reads before it packs them: large enough that reads are sequential, small
// enough that a job per core fits any cache of the last level.
constexpr size_t kJobBytes = size_t{2} << 20;

// Appends the tensors of a model to a table, each under its two names.
class TableBuilder {
 public:
  TableBuilder(const ModelConfig& config, const FormatPlan& plan, TensorTable* table)
      : config_(config), plan_(plan), table_(table) {}

  void Matrix(std::string name, std::string source, int64_t rows, int64_t cols) {
    Add(std::move(name), std::move(source), plan_.dense, rows, cols);
  }
  void FloatMatrix(std::string name, std::string source, int64_t rows, int64_t cols) {
    Add(std::move(name), std::move(source), WeightFormat::kF32, rows, cols);
  }
  void Vector(std::string name, std::string source, int64_t size) {
    TensorSpec& spec = Add(std::move(name), std::move(source), WeightFormat::kF32, 1, size);
    spec.source_shape = {size};
    spec.recipe = TensorRecipe::kVector;
  }

  void Layer(int64_t layer, bool has_indexer, WeightFormat expert_format) {
    to_ = fmt::format("layers.{}.", layer);
    from_ = fmt::format("model.layers.{}.", layer);
    Vector(to_ + "input_norm", from_ + "input_layernorm.weight", config_.hidden_size);
    Vector(to_ + "post_norm", from_ + "post_attention_layernorm.weight", config_.hidden_size);
    Attention();
    if (has_indexer) Indexer();
    if (config_.is_dense_layer(layer)) {
      Mlp("", "mlp.", config_.intermediate_size);
    } else {
      Moe(layer, expert_format);
    }
  }

  void MtpExtras() {
    const int64_t hidden = config_.hidden_size;
    Matrix(to_ + "eh_proj", from_ + "eh_proj.weight", hidden, 2 * hidden);
    Vector(to_ + "enorm", from_ + "enorm.weight", hidden);
    Vector(to_ + "hnorm", from_ + "hnorm.weight", hidden);
    Vector(to_ + "head_norm", from_ + "shared_head.norm.weight", hidden);
  }

 private:
  TensorSpec& Add(std::string name, std::string source, WeightFormat format, int64_t rows,
                  int64_t cols) {
    TensorSpec spec;
    spec.name = std::move(name);
    spec.source = std::move(source);
    spec.source_shape = {rows, cols};
    spec.format = format;
    spec.rows = rows;
    spec.cols = cols;
    return table_->dense.emplace_back(std::move(spec));
  }

  void Attention() {
    const std::string attn = from_ + "self_attn.";
    const int64_t hidden = config_.hidden_size, heads = config_.num_heads;
    const int64_t latent = config_.kv_lora_rank;
    Matrix(to_ + "q_a", attn + "q_a_proj.weight", config_.q_lora_rank, hidden);
    Vector(to_ + "q_a_norm", attn + "q_a_layernorm.weight", config_.q_lora_rank);
    Matrix(to_ + "q_b", attn + "q_b_proj.weight", heads * config_.qk_dim(), config_.q_lora_rank);
    Matrix(to_ + "kv_a", attn + "kv_a_proj_with_mqa.weight", latent + config_.qk_rope_dim, hidden);
    Vector(to_ + "kv_a_norm", attn + "kv_a_layernorm.weight", latent);
    Absorbed("k_absorb", TensorRecipe::kAbsorbK, latent, config_.qk_nope_dim);
    Absorbed("v_absorb", TensorRecipe::kAbsorbV, config_.v_dim, latent);
    Matrix(to_ + "o", attn + "o_proj.weight", hidden, heads * config_.v_dim);
  }

  void Absorbed(const char* name, TensorRecipe recipe, int64_t head_rows, int64_t cols) {
    const int64_t heads = config_.num_heads;
    TensorSpec& spec = Add(to_ + name, from_ + "self_attn.kv_b_proj.weight", plan_.dense,
                           heads * PaddedHeadRows(head_rows), cols);
    spec.source_shape = {heads * (config_.qk_nope_dim + config_.v_dim), config_.kv_lora_rank};
    spec.recipe = recipe;
    spec.num_heads = heads;
    spec.head_rows = head_rows;
  }

  void Indexer() {
    const std::string indexer = from_ + "self_attn.indexer.";
    const int64_t heads = config_.index_num_heads, dim = config_.index_head_dim;
    Matrix(to_ + "index_q", indexer + "wq_b.weight", heads * dim, config_.q_lora_rank);
    Matrix(to_ + "index_k", indexer + "wk.weight", dim, config_.hidden_size);
    Vector(to_ + "index_k_norm_weight", indexer + "k_norm.weight", dim);
    Vector(to_ + "index_k_norm_bias", indexer + "k_norm.bias", dim);
    FloatMatrix(to_ + "index_weights", indexer + "weights_proj.weight", heads, config_.hidden_size);
  }

  void Mlp(const std::string& prefix, const std::string& source, int64_t intermediate) {
    const int64_t hidden = config_.hidden_size;
    Matrix(to_ + prefix + "gate", from_ + source + "gate_proj.weight", intermediate, hidden);
    Matrix(to_ + prefix + "up", from_ + source + "up_proj.weight", intermediate, hidden);
    Matrix(to_ + prefix + "down", from_ + source + "down_proj.weight", hidden, intermediate);
  }

  void Moe(int64_t layer, WeightFormat expert_format) {
    const int64_t experts = config_.num_experts;
    FloatMatrix(to_ + "router", from_ + "mlp.gate.weight", experts, config_.hidden_size);
    Vector(to_ + "router_bias", from_ + "mlp.gate.e_score_correction_bias", experts);
    if (config_.num_shared_experts > 0) {
      Mlp("shared_", "mlp.shared_experts.", config_.shared_intermediate());
    }
    table_->experts.push_back(
        {layer, experts, {expert_format, config_.hidden_size, config_.moe_intermediate_size}});
  }

  const ModelConfig& config_;
  const FormatPlan& plan_;
  TensorTable* table_;
  std::string to_, from_;  // prefixes of the layer in work
};

std::string ExpertSource(int64_t layer, int64_t expert, const char* projection) {
  return fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.weight", layer, expert, projection);
}

// Reads the rows of a spec panel by panel in ascending order; keeps what the next panel of the same
// head needs again.
class PanelReader {
 public:
  PanelReader(const Checkpoint& checkpoint, const TensorSpec& spec)
      : checkpoint_(checkpoint), spec_(spec) {}

  // Reads the rows of `panel` into rows(); returns how many there are, 0..kPanelRows.
  int Read(int64_t panel) {
    if (spec_.recipe == TensorRecipe::kAbsorbK || spec_.recipe == TensorRecipe::kAbsorbV) {
      return ReadOfHead(panel);
    }
    const int64_t first = panel * kPanelRows;
    const int64_t count = std::min<int64_t>(kPanelRows, spec_.rows - first);
    rows_.resize(size_t(count * spec_.cols));
    checkpoint_.ReadRows(spec_.source, first, count, rows_.data());
    return int(count);
  }
  const float* rows() const { return rows_.data(); }
  const std::vector<float>& values() const { return rows_; }

 private:
  int ReadOfHead(int64_t panel) {
    const int64_t head_panels = NumPanels(spec_.head_rows);
    const int64_t head = panel / head_panels, first = panel % head_panels * kPanelRows;
    const int64_t count = std::min<int64_t>(kPanelRows, spec_.head_rows - first);
    const int64_t source_rows = spec_.source_shape[0] / spec_.num_heads;
    const int64_t latent = spec_.source_shape[1];
    rows_.resize(size_t(count * spec_.cols));
    if (spec_.recipe == TensorRecipe::kAbsorbV) {
      const int64_t nope = source_rows - spec_.head_rows;
      checkpoint_.ReadRows(spec_.source, head * source_rows + nope + first, count, rows_.data());
      return int(count);
    }
    if (head != head_) {
      head_rows_.resize(size_t(spec_.cols * latent));
      checkpoint_.ReadRows(spec_.source, head * source_rows, spec_.cols, head_rows_.data());
      head_ = head;
    }
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t i = 0; i < spec_.cols; ++i) {
        rows_[size_t(r * spec_.cols + i)] = head_rows_[size_t(i * latent + first + r)];
      }
    }
    return int(count);
  }

  const Checkpoint& checkpoint_;
  const TensorSpec& spec_;
  std::vector<float> rows_;
  std::vector<float> head_rows_;  // [qk_nope, latent] of head_
  int64_t head_ = -1;
};

// Refuses values whose group would need a scale beyond f16.
void CheckRange(WeightFormat format, const std::string& name, const std::vector<float>& values) {
  constexpr float kLargestHalf = 65504.0f;
  if (format != WeightFormat::kW4 && format != WeightFormat::kW8) return;
  const float limit = kLargestHalf * (format == WeightFormat::kW4 ? 7.0f : 127.0f);
  for (const float v : values) {
    if (std::fabs(v) <= limit) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("tensor {} holds {:g}, beyond {:g}, the range of {}; w15 holds it",
                            name, v, limit, WeightFormatName(format)));
  }
}

struct ExpertMatrix {
  std::string source;
  int index;  // as ExpertPanelOffset's `matrix`
  int64_t rows, cols;
};

void PackExpertMatrix(const Checkpoint& checkpoint, const ExpertShape& shape,
                      const ExpertMatrix& matrix, uint8_t* image) {
  const int64_t job_panels =
      std::max<int64_t>(1, int64_t(kJobBytes / (size_t(matrix.cols) * sizeof(float) * kPanelRows)));
  std::vector<float> rows;
  for (int64_t panel = 0; panel < NumPanels(matrix.rows); panel += job_panels) {
    const int64_t first = panel * kPanelRows;
    const int64_t count = std::min(job_panels * kPanelRows, matrix.rows - first);
    rows.resize(size_t(count * matrix.cols));
    checkpoint.ReadRows(matrix.source, first, count, rows.data());
    CheckRange(shape.format, matrix.source, rows);
    for (int64_t r = 0; r < count; r += kPanelRows) {
      PackPanel(shape.format, rows.data() + r * matrix.cols,
                int(std::min<int64_t>(kPanelRows, count - r)), matrix.cols,
                image + ExpertPanelOffset(shape, matrix.index, panel + r / kPanelRows));
    }
  }
}

}  // namespace

std::string ExpertLayerSpec::gate(int64_t expert) const {
  return ExpertSource(layer, expert, "gate");
}
std::string ExpertLayerSpec::up(int64_t expert) const { return ExpertSource(layer, expert, "up"); }
std::string ExpertLayerSpec::down(int64_t expert) const {
  return ExpertSource(layer, expert, "down");
}

uint64_t TensorTable::dense_bytes() const {
  uint64_t sum = 0;
  for (const TensorSpec& spec : dense) sum += WholePages(spec.num_bytes());
  return sum;
}

bool TensorTable::HasIndexer(int64_t layer) const {
  const std::string name = fmt::format("layers.{}.index_q", layer);
  return std::ranges::count(dense, name, &TensorSpec::name) > 0;
}

uint64_t TensorTable::expert_bytes() const {
  uint64_t sum = 0;
  for (const ExpertLayerSpec& layer : experts) {
    sum += uint64_t(layer.num_experts) * ExpertImageBytes(layer.shape);
  }
  return sum;
}

TensorTable ListTensors(const ModelConfig& config, const FormatPlan& plan, bool with_mtp,
                        bool mtp_has_indexer) {
  TensorTable table;
  TableBuilder builder(config, plan, &table);
  const bool indexed = config.index_num_heads > 0;
  CHECK(!indexed || int64_t(config.layer_has_indexer.size()) >= config.num_layers);
  builder.Matrix("embed", "model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    builder.Layer(layer, indexed && config.layer_has_indexer[size_t(layer)], plan.experts);
  }
  builder.Vector("norm", "model.norm.weight", config.hidden_size);
  builder.Matrix("head", "lm_head.weight", config.vocab_size, config.hidden_size);
  if (with_mtp) {
    builder.Layer(config.num_layers, indexed && mtp_has_indexer, plan.mtp_experts);
    builder.MtpExtras();
  }
  return table;
}

std::string MtpIndexerName(const ModelConfig& config) {
  return fmt::format("model.layers.{}.self_attn.indexer.wq_b.weight", config.num_layers);
}

bool LacksIndexer(const ModelConfig& config, const Checkpoint& checkpoint) {
  if (config.index_num_heads == 0) return false;
  bool predecessor = false;
  for (const CheckpointTensor& tensor : checkpoint.List()) {
    if (tensor.name.find(".indexer.") != std::string::npos) return false;
    predecessor = predecessor || tensor.encoding.starts_with("colibri");
  }
  return predecessor;
}

size_t PanelRangeBytes(const TensorSpec& spec, int64_t first, int64_t count) {
  if (spec.format != WeightFormat::kF32) {
    return size_t(count) * size_t(NumGroups(spec.cols)) * TileBytes(spec.format);
  }
  const int64_t end = std::min((first + count) * kPanelRows, spec.rows);
  return size_t(std::max<int64_t>(0, end - first * kPanelRows)) * size_t(spec.cols) * sizeof(float);
}

int64_t PanelsPerJob(const TensorSpec& spec, size_t min_bytes) {
  const size_t panel_bytes = size_t(kPanelRows) * size_t(spec.cols) * sizeof(float);
  const int64_t panels = int64_t((min_bytes + panel_bytes - 1) / panel_bytes);
  if (spec.recipe != TensorRecipe::kAbsorbK) return std::max<int64_t>(1, panels);
  const int64_t head_panels = NumPanels(spec.head_rows);
  return std::max<int64_t>(1, (panels + head_panels - 1) / head_panels) * head_panels;
}

void PackPanels(const Checkpoint& checkpoint, const TensorSpec& spec, int64_t first, int64_t count,
                uint8_t* out) {
  PanelReader reader(checkpoint, spec);
  for (int64_t panel = first; panel < first + count; ++panel) {
    const int num_rows = reader.Read(panel);
    CheckRange(spec.format, spec.source, reader.values());
    if (spec.format == WeightFormat::kF32) {
      const size_t bytes = size_t(num_rows) * size_t(spec.cols) * sizeof(float);
      std::memcpy(out, reader.rows(), bytes);
      out += bytes;
    } else {
      PackPanel(spec.format, reader.rows(), num_rows, spec.cols, out);
      out += PanelRangeBytes(spec, panel, 1);
    }
  }
}

void PackTensor(const Checkpoint& checkpoint, const TensorSpec& spec, const ParallelFor& parallel,
                uint8_t* out) {
  const int64_t num_panels = NumPanels(spec.rows);
  const int64_t job_panels = PanelsPerJob(spec, kJobBytes);
  std::mutex mutex;
  std::exception_ptr error;
  parallel((num_panels + job_panels - 1) / job_panels, [&](int64_t job) {
    const int64_t first = job * job_panels, count = std::min(job_panels, num_panels - first);
    try {
      PackPanels(checkpoint, spec, first, count, out + PanelRangeBytes(spec, 0, first));
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

void PackExpert(const Checkpoint& checkpoint, const ExpertLayerSpec& layer, int64_t expert,
                uint8_t* out) {
  const ExpertShape& shape = layer.shape;
  const size_t used = ExpertPanelOffset(shape, 2, NumPanels(shape.hidden));
  std::memset(out + used, 0, ExpertImageBytes(shape) - used);
  const ExpertMatrix matrices[] = {
      {layer.gate(expert), 0, shape.intermediate, shape.hidden},
      {layer.up(expert), 1, shape.intermediate, shape.hidden},
      {layer.down(expert), 2, shape.hidden, shape.intermediate},
  };
  for (const ExpertMatrix& matrix : matrices) PackExpertMatrix(checkpoint, shape, matrix, out);
}

void ExpectAll(const TensorTable& table, Checkpoint& checkpoint) {
  for (const TensorSpec& spec : table.dense) checkpoint.Expect({spec.source, spec.source_shape});
  for (const ExpertLayerSpec& layer : table.experts) {
    const std::vector<int64_t> in = {layer.shape.intermediate, layer.shape.hidden};
    const std::vector<int64_t> out = {layer.shape.hidden, layer.shape.intermediate};
    for (int64_t expert = 0; expert < layer.num_experts; ++expert) {
      checkpoint.Expect({layer.gate(expert), in});
      checkpoint.Expect({layer.up(expert), in});
      checkpoint.Expect({layer.down(expert), out});
    }
  }
}

}  // namespace hillstar
