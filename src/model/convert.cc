#include "model/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "formats/container.h"
#include "formats/container_checksum.h"
#include "hillstar/error.h"
#include "model/container_build.h"

namespace hillstar {
namespace {

class CheckpointSource : public ContainerSource {
 public:
  explicit CheckpointSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  void FillPanels(const TensorSpec& spec, int64_t first, int64_t count,
                  uint8_t* out) const override {
    PackPanels(checkpoint_, spec, first, count, out);
  }
  void FillExpert(const ExpertLayerSpec& layer, int64_t expert, uint8_t* out) const override {
    PackExpert(checkpoint_, layer, expert, out);
  }

 private:
  const Checkpoint& checkpoint_;
};

void RequireIntegerFormats(const FormatPlan& plan) {
  for (WeightFormat format : {plan.experts, plan.dense, plan.mtp_experts}) {
    if (format != WeightFormat::kF32) continue;
    throw Error(ErrorCode::kUsage, "matrices are stored as w4, w8 or w15, not as f32");
  }
}

// Whether the MTP layer is converted. Never silently without: its absence must be asked for.
bool DecideMtp(const ConvertJob& job, const ModelConfig& config, const Checkpoint& checkpoint) {
  if (!job.with_mtp || config.num_mtp_layers == 0) return false;
  const std::string name = fmt::format("model.layers.{}.eh_proj.weight", config.num_layers);
  if (checkpoint.Has(name)) return true;
  throw Error(ErrorCode::kNotFound,
              fmt::format("the configuration of {} has an MTP layer, but {} is missing; convert "
                          "without it by --no-mtp",
                          job.checkpoint.native(), name));
}

std::set<std::string> SourceNames(const TensorTable& table) {
  std::set<std::string> names;
  for (const TensorSpec& spec : table.dense) names.insert(spec.source);
  for (const ExpertLayerSpec& layer : table.experts) {
    for (int64_t e = 0; e < layer.num_experts; ++e) {
      names.insert({layer.gate(e), layer.up(e), layer.down(e)});
    }
  }
  return names;
}

// The checkpoint's encodings and what of it is not used.
std::string DescribeSource(const Checkpoint& checkpoint, const TensorTable& table,
                           const ConvertJob& job) {
  const std::set<std::string> used = SourceNames(table);
  std::set<std::string> encodings;
  std::vector<std::string> ignored;
  uint64_t num_bytes = 0;
  for (const CheckpointTensor& tensor : checkpoint.List()) {
    if (used.count(tensor.name) == 0) {
      ignored.push_back(tensor.name);
      continue;
    }
    encodings.insert(tensor.encoding);
    num_bytes += tensor.stored_bytes;
  }
  std::string text = fmt::format("from       {}: {} in {}\n", job.checkpoint.native(),
                                 FormatBytes(num_bytes), fmt::join(encodings, ", "));
  if (!ignored.empty()) {
    text += fmt::format("ignored    {} tensors that the model does not use, e.g. {}\n",
                        ignored.size(), ignored.front());
  }
  return text;
}

std::string DescribeIndexer(const ConversionPlan& plan, bool lacks_indexer) {
  if (lacks_indexer) return "none in the checkpoint: every token attends to all before it";
  const ModelConfig& c = plan.config;
  if (c.index_num_heads == 0) return "none: every token attends to all before it";
  const auto num_layers = std::ranges::count(c.layer_has_indexer, true);
  const bool on_mtp = plan.table.HasIndexer(c.num_layers);
  return fmt::format("on {} of the layers{}", num_layers, on_mtp ? " and on the MTP layer" : "");
}

std::string DescribeModel(const ConversionPlan& plan, bool with_mtp, bool lacks_indexer) {
  const ModelConfig& c = plan.config;
  std::string text = fmt::format(
      "model      {}: {} layers ({} dense), hidden {}, {} experts of width {}, vocabulary {}\n",
      c.model_type, c.num_layers, c.num_dense_layers, c.hidden_size, c.num_experts,
      c.moe_intermediate_size, c.vocab_size);
  text += fmt::format("indexer    {}\n", DescribeIndexer(plan, lacks_indexer));
  const char* mtp = with_mtp                ? "converted"
                    : c.num_mtp_layers == 0 ? "the model has none"
                                            : "left out as asked";
  text += fmt::format("MTP layer  {}\n", mtp);
  const FormatPlan& f = plan.job.formats;
  text += fmt::format(
      "formats    experts {}, MTP experts {}, other matrices {}, norms and router "
      "f32; one scale per row and {} inputs\n",
      WeightFormatName(f.experts), WeightFormatName(f.mtp_experts), WeightFormatName(f.dense),
      kGroup);
  return text;
}

ContainerJob MakeJob(const ConversionPlan& plan, bool with_mtp, bool lacks_indexer) {
  ContainerJob job = ListJob(plan.table);
  for (std::string_view name : kSideFileNames) {
    job.side_files.emplace_back(name, plan.checkpoint->SideFile(name));
  }
  const FormatPlan& formats = plan.job.formats;
  job.origin = {{"operation", "convert"},
                {"experts", WeightFormatName(formats.experts)},
                {"dense", WeightFormatName(formats.dense)},
                {"mtp_experts", WeightFormatName(formats.mtp_experts)},
                {"mtp", with_mtp ? "yes" : "no"},
                {"indexer", plan.config.index_num_heads == 0 || lacks_indexer ? "no" : "yes"},
                {"checkpoint", SampleCheckpoint(*plan.checkpoint, plan.table)}};
  return job;
}

}  // namespace

ConversionPlan PlanConversion(const ConvertJob& job) {
  RequireIntegerFormats(job.formats);
  ConversionPlan plan;
  plan.job = job;
  RefuseUnfinished(job.checkpoint);
  if (Container::IsContainer(job.checkpoint)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} is a Hillstar container already; only checkpoints are converted",
                            job.checkpoint.string()));
  }
  plan.checkpoint = Checkpoint::Open(job.checkpoint);
  Checkpoint& checkpoint = *plan.checkpoint;
  plan.config = ParseModelConfig(checkpoint.SideFile("config.json"),
                                 checkpoint.SideFile("generation_config.json"));
  const bool lacks_indexer = LacksIndexer(plan.config, checkpoint);
  if (lacks_indexer) plan.config.index_num_heads = 0;
  const bool with_mtp = DecideMtp(job, plan.config, checkpoint);
  plan.table = ListTensors(plan.config, job.formats, with_mtp,
                           with_mtp && checkpoint.Has(MtpIndexerName(plan.config)));
  ExpectAll(plan.table, checkpoint);
  plan.writer = std::make_unique<ContainerWriter>(job.out, MakeJob(plan, with_mtp, lacks_indexer));
  plan.summary = DescribeSource(checkpoint, plan.table, job) +
                 DescribeModel(plan, with_mtp, lacks_indexer) +
                 DescribeSizes(plan.table, *plan.writer);
  return plan;
}

void RunConversion(ConversionPlan* plan, const ProgressFn& progress,
                   const std::atomic<bool>* cancel) {
  plan->writer->RequireSpace();
  BuildContainer(plan->table, CheckpointSource(*plan->checkpoint),
                 {plan->job.num_threads, progress, cancel}, plan->writer.get());
}

std::string SampleCheckpoint(const Checkpoint& checkpoint, const TensorTable& table) {
  std::string text;
  std::vector<float> row;
  const auto add = [&](const std::string& name, int64_t cols) {
    row.resize(size_t(cols));
    checkpoint.ReadRows(name, 0, 1, row.data());
    text += fmt::format("{} {:016x}\n", name, Checksum(row.data(), row.size() * sizeof(float)));
  };
  for (const TensorSpec& spec : table.dense) add(spec.source, spec.source_shape.back());
  for (const ExpertLayerSpec& layer : table.experts) {
    for (int64_t expert : {int64_t{0}, layer.num_experts - 1}) {
      add(layer.gate(expert), layer.shape.hidden);
      add(layer.down(expert), layer.shape.intermediate);
    }
  }
  return Sha256Hex(text);
}

}  // namespace hillstar
