#include <fmt/format.h>

#include <cstring>

#include "core/log.h"
#include "formats/checkpoint.h"
#include "formats/container.h"
#include "formats/container_checksum.h"
#include "formats/container_writer.h"
#include "model/weights.h"

namespace hillstar {
namespace {

template <typename Folder>
ModelFiles ReadFiles(const Folder& folder) {
  return {folder.SideFile("config.json"), folder.SideFile("generation_config.json"),
          folder.SideFile("tokenizer.json"), folder.SideFile("tokenizer_config.json"),
          folder.SideFile("chat_template.jinja")};
}

class CheckpointSource : public ModelSource {
 public:
  CheckpointSource(const std::string& folder, const FormatPlan& plan, bool with_mtp)
      : checkpoint_(Checkpoint::Open(folder)), files_(ReadFiles(*checkpoint_)) {
    config_ = ParseModelConfig(files_.config, files_.generation_config);
    if (LacksIndexer(config_, *checkpoint_)) {
      LogWarn(
          fmt::format("{} has no indexer weights: attention looks at the whole context", folder));
      config_.index_num_heads = 0;
      config_.layer_has_indexer.assign(config_.layer_has_indexer.size(), false);
    }
    const bool brings_mtp =
        config_.num_mtp_layers > 0 &&
        checkpoint_->Has(fmt::format("model.layers.{}.eh_proj.weight", config_.num_layers));
    if (!with_mtp || !brings_mtp) config_.num_mtp_layers = 0;
    table_ = ListTensors(config_, plan, config_.num_mtp_layers > 0,
                         checkpoint_->Has(MtpIndexerName(config_)));
    ExpectAll(table_, *checkpoint_);
  }

  const ModelFiles& files() const override { return files_; }
  const ModelConfig& config() const override { return config_; }
  const TensorTable& table() const override { return table_; }
  bool is_container() const override { return false; }
  std::string Identity() const override {
    std::string text = "checkpoint\n" + files_.config + "\n";
    std::vector<float> row;
    const auto add = [&](const std::string& name, WeightFormat format, int64_t cols) {
      row.resize(size_t(cols));
      checkpoint_->ReadRows(name, 0, 1, row.data());
      text += fmt::format("{} {} {}\n", name, WeightFormatName(format),
                          ChecksumHex(Checksum(row.data(), row.size() * sizeof(float))));
    };
    for (const TensorSpec& spec : table_.dense) {
      add(spec.source, spec.format, spec.source_shape.back());
    }
    for (const ExpertLayerSpec& layer : table_.experts) {
      for (int64_t e : {int64_t{0}, layer.num_experts - 1}) {
        add(layer.gate(e), layer.shape.format, layer.shape.hidden);
      }
    }
    return Sha256Hex(text);
  }

  void LoadTensor(const TensorSpec& spec, const ParallelFor& parallel,
                  uint8_t* out) const override {
    PackTensor(*checkpoint_, spec, parallel, out);
  }
  void LoadExperts(const ExpertLayerSpec& layer, int64_t first, int64_t count,
                   uint8_t* out) const override {
    for (int64_t e = first; e < first + count; ++e, out += ExpertImageBytes(layer.shape)) {
      PackExpert(*checkpoint_, layer, e, out);
    }
  }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelFiles files_;
  ModelConfig config_;
  TensorTable table_;
};

class ContainerSource : public ModelSource {
 public:
  ContainerSource(const std::string& folder, bool with_mtp)
      : folder_(folder), container_(Container::Open(folder)), files_(ReadFiles(*container_)) {
    config_ = ParseModelConfig(files_.config, files_.generation_config);
    const std::string mtp = fmt::format("layers.{}.", config_.num_layers);
    if (!with_mtp || !container_->Find(mtp + "eh_proj")) config_.num_mtp_layers = 0;
    if (config_.index_num_heads > 0 && !HasIndexer()) {
      config_.index_num_heads = 0;
      config_.layer_has_indexer.assign(config_.layer_has_indexer.size(), false);
    }
    table_ = ListTensors(config_, FormatPlan{}, config_.num_mtp_layers > 0,
                         container_->Find(mtp + "index_q") != nullptr);
    for (TensorSpec& spec : table_.dense) TakeFormat(&spec);
    for (ExpertLayerSpec& layer : table_.experts) TakeFormat(&layer);
  }

  const ModelFiles& files() const override { return files_; }
  const ModelConfig& config() const override { return config_; }
  const TensorTable& table() const override { return table_; }
  bool is_container() const override { return true; }
  std::string Identity() const override { return container_->identity(); }

  void LoadTensor(const TensorSpec& spec, const ParallelFor&, uint8_t* out) const override {
    container_->ReadTensor(*container_->Find(spec.name), out);
  }
  void LoadExperts(const ExpertLayerSpec& layer, int64_t first, int64_t count,
                   uint8_t* out) const override {
    container_->ReadExperts(FindExperts(layer.layer), first, count, out);
  }

 private:
  bool HasIndexer() const {
    for (const ContainerTensor& t : container_->tensors()) {
      if (t.name.ends_with(".index_q")) return true;
    }
    return false;
  }

  // The container decides formats; shapes must be the model's.
  void TakeFormat(TensorSpec* spec) const {
    const ContainerTensor* t = container_->Find(spec->name);
    if (!t) {
      throw Error(ErrorCode::kBadFile,
                  fmt::format("{} lacks the tensor {}, which its config.json asks for", folder_,
                              spec->name));
    }
    const bool is_float = spec->format == WeightFormat::kF32;
    if (t->rows != spec->rows || t->cols != spec->cols ||
        (t->format == WeightFormat::kF32) != is_float) {
      throw Error(ErrorCode::kBadFile,
                  fmt::format("{}: tensor {} is {} [{}, {}], its config.json asks for {} [{}, {}]",
                              folder_, spec->name, WeightFormatName(t->format), t->rows, t->cols,
                              is_float ? "f32" : "integers", spec->rows, spec->cols));
    }
    spec->format = t->format;
  }

  void TakeFormat(ExpertLayerSpec* layer) const {
    const ContainerExperts& e = FindExperts(layer->layer);
    if (e.num_experts != layer->num_experts || e.shape.hidden != layer->shape.hidden ||
        e.shape.intermediate != layer->shape.intermediate) {
      throw Error(
          ErrorCode::kBadFile,
          fmt::format("{}: layer {} holds {} experts of {} x {}, its config.json asks for "
                      "{} of {} x {}",
                      folder_, layer->layer, e.num_experts, e.shape.hidden, e.shape.intermediate,
                      layer->num_experts, layer->shape.hidden, layer->shape.intermediate));
    }
    layer->shape = e.shape;
  }

  const ContainerExperts& FindExperts(int64_t layer) const {
    for (const ContainerExperts& e : container_->experts()) {
      if (e.layer == layer) return e;
    }
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} lacks the experts of layer {}", folder_, layer));
  }

  std::string folder_;
  std::unique_ptr<Container> container_;
  ModelFiles files_;
  ModelConfig config_;
  TensorTable table_;
};

std::string FormatOf(const TensorTable& table, bool experts) {
  std::string names;
  const auto add = [&](WeightFormat format) {
    const std::string name = WeightFormatName(format);
    if (format == WeightFormat::kF32 || names.find(name) != std::string::npos) return;
    names += names.empty() ? name : "/" + name;
  };
  if (experts) {
    for (const ExpertLayerSpec& layer : table.experts) add(layer.shape.format);
  } else {
    for (const TensorSpec& spec : table.dense) add(spec.format);
  }
  return names;
}

}  // namespace

std::unique_ptr<ModelSource> ModelSource::Open(const std::string& folder,
                                               const std::string& weights, bool with_mtp) {
  if (Container::IsContainer(folder)) return std::make_unique<ContainerSource>(folder, with_mtp);
  RefuseUnfinished(folder);
  return std::make_unique<CheckpointSource>(folder, ParseFormatPlan(weights), with_mtp);
}

std::string DescribeFormats(const TensorTable& table) {
  const std::string dense = FormatOf(table, false), experts = FormatOf(table, true);
  if (experts.empty() || experts == dense) return dense;
  return "experts " + experts + ", rest " + dense;
}

FormatPlan ParseFormatPlan(const std::string& weights) {
  using enum WeightFormat;
  if (weights == "w15") return {kW15, kW15, kW15};
  if (weights == "w8") return {kW8, kW8, kW8};
  if (weights == "w4") return {kW4, kW4, kW4};
  if (weights == "pocket") return {kW4, kW8, kW4};
  throw Error(ErrorCode::kUsage,
              "--weights '" + weights + "' is none of w15, w8, w4, pocket (experts w4, rest w8)");
}

}  // namespace hillstar
