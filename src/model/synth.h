// Models of true geometry with random weights, written straight into a container: for measuring
// speed and memory where the real weights are too large or not at hand. What they say is noise.
// One thread owns a plan.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "formats/container_writer.h"
#include "hillstar/engine.h"
#include "model/config.h"
#include "model/tensor_table.h"

namespace hillstar {

struct SynthJob {
  std::filesystem::path out;
  std::string geometry = "glm-5.2";  // glm-5.2 or pocket (the built-in model's)
  int64_t num_layers = 0;            // 0: as many as the geometry has
  int64_t num_dense_layers = -1;     // -1: the geometry's if num_layers is, else 1
  int64_t max_positions = 0;         // 0: the geometry's
  FormatPlan formats;
  bool with_mtp = false;
  uint64_t seed = 1;
  int num_threads = 1;
};

struct SynthPlan {
  SynthJob job;
  ModelConfig config;
  TensorTable table;
  std::unique_ptr<ContainerWriter> writer;
  std::string summary;  // for people; ends in a newline
};

// Errors: kUsage for an unknown geometry, impossible layers, or a folder that holds something else.
SynthPlan PlanSynth(const SynthJob& job);

// Errors as RunConversion.
void RunSynth(SynthPlan* plan, const ProgressFn& progress = {},
              const std::atomic<bool>* cancel = nullptr);

// The texts of config.json and tokenizer.json of a job. The tokenizer has one token a byte and
// GLM's added tokens at the ids that the configuration's end tokens name; every other id of the
// vocabulary decodes to a word like " w1234" that no text encodes to.
std::string SynthConfigJson(const SynthJob& job);
std::string SynthTokenizerJson(const SynthJob& job);

}  // namespace hillstar
