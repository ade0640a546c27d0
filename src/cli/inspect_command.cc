#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/request.h"
#include "cli/terminal.h"
#include "engine/memory_plan.h"
#include "formats/container.h"
#include "model/weights.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;

struct Sizes {
  uint64_t parameters = 0;
  uint64_t dense_bytes = 0, expert_bytes = 0;
  uint64_t expert_image_bytes = 0;
  int64_t num_experts = 0;  // over all layers
};

Sizes SizesOf(const TensorTable& table) {
  Sizes sizes;
  for (const TensorSpec& spec : table.dense) {
    sizes.parameters += uint64_t(spec.rows) * uint64_t(spec.cols);
  }
  for (const ExpertLayerSpec& layer : table.experts) {
    const uint64_t each = uint64_t(3 * layer.shape.hidden * layer.shape.intermediate);
    sizes.parameters += uint64_t(layer.num_experts) * each;
    sizes.num_experts += layer.num_experts;
    sizes.expert_image_bytes = ExpertImageBytes(layer.shape);
  }
  sizes.dense_bytes = table.dense_bytes();
  sizes.expert_bytes = table.expert_bytes();
  return sizes;
}

// Reads every part of a container; throws at the first that does not match its checksum.
uint64_t VerifyContainer(const std::string& folder) {
  const std::unique_ptr<Container> container = Container::Open(folder);
  uint64_t total = 0, done = 0;
  for (const ContainerTensor& tensor : container->tensors()) total += tensor.num_bytes;
  for (const ContainerExperts& layer : container->experts()) {
    total += layer.image_bytes * uint64_t(layer.num_experts);
  }
  ProgressLine line("verifying", ProgressLine::Unit::kBytes);
  std::vector<uint8_t> buffer;
  const auto finish = [&](uint64_t bytes) { line.Update(done += bytes, total); };
  for (const ContainerTensor& tensor : container->tensors()) {
    buffer.resize(tensor.num_bytes);
    container->ReadTensor(tensor, buffer.data());
    finish(tensor.num_bytes);
  }
  for (const ContainerExperts& layer : container->experts()) {
    buffer.resize(layer.image_bytes);
    for (int64_t expert = 0; expert < layer.num_experts; ++expert) {
      container->ReadExperts(layer, expert, 1, buffer.data());
      finish(layer.image_bytes);
    }
  }
  return total;
}

Json Describe(const ModelSource& source) {
  const ModelConfig& c = source.config();
  const Sizes sizes = SizesOf(source.table());
  Json json;
  json["kind"] = source.is_container() ? "Hillstar container" : "checkpoint";
  json["model_type"] = c.model_type;
  json["weights"] = DescribeFormats(source.table());
  json["parameters"] = sizes.parameters;
  json["layers"] = c.num_layers;
  json["dense_layers"] = c.num_dense_layers;
  json["mtp_layers"] = c.num_mtp_layers;
  json["indexer_layers"] = std::ranges::count(c.layer_has_indexer, true);
  json["mtp_has_indexer"] = source.table().HasIndexer(source.config().num_layers);
  json["index_topk"] = c.index_topk;
  json["hidden_size"] = c.hidden_size;
  json["heads"] = c.num_heads;
  json["experts"] = c.num_experts;
  json["experts_per_token"] = c.num_experts_per_token;
  json["vocabulary"] = c.vocab_size;
  json["longest_context_tokens"] = c.max_positions;
  json["dense_bytes"] = sizes.dense_bytes;
  json["expert_bytes"] = sizes.expert_bytes;
  json["expert_image_bytes"] = sizes.expert_image_bytes;
  json["expert_images"] = sizes.num_experts;
  return json;
}

Json DescribeMemory(const EngineOptions& options, const ModelConfig& config) {
  const MemoryPlan plan = PredictMemory(options);
  const EngineSizes sizes = ResolveSizes(options, config);
  const bool is_gpu = options.device.starts_with("cuda");
  return {{"device", is_gpu ? options.device : "cpu"},
          {"context_tokens", sizes.context_tokens},
          {"kv_format", KvFormatName(sizes.kv_format)},
          {"dense_weights", plan.dense_weights},
          {"experts", plan.experts},
          {"latent_kv", plan.latent_kv},
          {"index_keys", plan.index_keys},
          {"workspace", plan.workspace},
          {"program", plan.program},
          {"total", is_gpu ? plan.on_device() : plan.total()}};
}

void PrintMemory(const Json& memory, bool has_mtp) {
  const auto bytes = [&](const char* name) { return BytesText(memory[name].get<uint64_t>()); };
  const auto device = memory["device"].get<std::string>();
  fmt::print("  memory to run it{}{} with a context of {}: {}\n",
             device == "cpu" ? "" : " on " + device, has_mtp ? ", without the MTP layer," : "",
             CountText(memory["context_tokens"].get<int64_t>(), "token"), bytes("total"));
  fmt::print(
      "    experts {}, other weights {}, latent KV in {} {}, index keys {}, workspace {}{} {}\n",
      bytes("experts"), bytes("dense_weights"), memory["kv_format"].get<std::string>(),
      bytes("latent_kv"), bytes("index_keys"), bytes("workspace"),
      device == "cpu" ? ", program" : "; beside it on the host: program", bytes("program"));
}

std::string IndexerText(const Json& j) {
  const auto num_layers = j["indexer_layers"].get<int64_t>();
  if (num_layers == 0) return "no indexer: every token attends to all before it";
  return fmt::format("indexer on {} of the layers{}, selects {}", num_layers,
                     j["mtp_has_indexer"].get<bool>() ? " and on the MTP layer" : "",
                     j["index_topk"].get<int64_t>());
}

void PrintText(const std::string& folder, const Json& j) {
  const auto number = [&](const char* name) { return j[name].get<uint64_t>(); };
  const auto count = [&](const char* name, const char* noun) {
    return CountText(j[name].get<int64_t>(), noun);
  };
  fmt::print("{}: {}, {}\n", folder, j["kind"].get<std::string>(),
             j["model_type"].get<std::string>());
  fmt::print("  {:.1f} million parameters, weights {}\n", double(number("parameters")) / 1e6,
             j["weights"].get<std::string>());
  fmt::print("  {} ({} dense), {} MTP, hidden size {}, {}\n", count("layers", "layer"),
             number("dense_layers"), number("mtp_layers"), number("hidden_size"),
             count("heads", "head"));
  fmt::print("  {} experts a layer, {} a token; {}\n", number("experts"),
             number("experts_per_token"), IndexerText(j));
  fmt::print("  vocabulary {}, context up to {} tokens\n", number("vocabulary"),
             number("longest_context_tokens"));
  fmt::print("  on disk or converted: {} of experts ({} images of {}), {} of other weights\n",
             BytesText(number("expert_bytes")), number("expert_images"),
             BytesText(number("expert_image_bytes")), BytesText(number("dense_bytes")));
}

}  // namespace

int InspectCommand(const Options& options) {
  const std::string folder = ModelFolder(options.arguments.empty() ? "" : options.arguments[0]);
  const EngineOptions engine = EngineOptionsFrom(options, folder, /*load_mtp=*/true);
  const std::unique_ptr<ModelSource> source =
      ModelSource::Open(folder, engine.weights, engine.load_mtp);
  if (options.verify && !source->is_container()) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("--verify is of no use here: {} is a checkpoint, which has no checksums",
                    folder));
  }
  Json json = Describe(*source);
  // The other commands leave the MTP layer out unless they need it.
  json["memory"] =
      DescribeMemory(EngineOptionsFrom(options, folder, /*load_mtp=*/false), source->config());
  if (options.verify) json["verified_bytes"] = VerifyContainer(folder);
  if (options.json) {
    fmt::print("{}\n", json.dump(2));
    return 0;
  }
  PrintText(folder, json);
  PrintMemory(json["memory"], json["mtp_layers"] > 0);
  if (options.verify) {
    fmt::print("  every checksum is right ({} read)\n",
               BytesText(json["verified_bytes"].get<uint64_t>()));
  }
  return 0;
}

}  // namespace hillstar
