// A checkpoint becomes a container. Planning reads configuration, headers and a few rows, refuses
// what cannot be served and says what will be written; running writes it and can be stopped at any
// moment and continued by the same job. One thread owns a plan.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "formats/checkpoint.h"
#include "formats/container_writer.h"
#include "hillstar/engine.h"
#include "model/config.h"
#include "model/tensor_table.h"

namespace hillstar {

struct ConvertJob {
  std::filesystem::path checkpoint;  // a Hugging Face checkpoint or a predecessor's container
  std::filesystem::path out;         // a new or empty folder, or an unfinished one of the same job
  FormatPlan formats;
  bool with_mtp = true;  // convert the MTP layer where the configuration has one
  int num_threads = 1;
};

struct ConversionPlan {
  ConvertJob job;
  std::unique_ptr<Checkpoint> checkpoint;
  ModelConfig config;
  TensorTable table;
  std::unique_ptr<ContainerWriter> writer;
  std::string summary;  // for people: formats, parts, sizes, what is ignored; ends in a newline

  uint64_t total_bytes() const { return writer->total_bytes(); }
  uint64_t finished_bytes() const { return writer->finished_bytes(); }
  bool continues() const { return writer->continues(); }
};

// Errors: kUnsupported for a model or tensor that cannot be served, kNotFound and kBadFile for what
// is wrong with the checkpoint, kUsage for a folder that holds something else (a finished
// container, an unfinished one of another job, foreign files).
ConversionPlan PlanConversion(const ConvertJob& job);

// Errors: kBudget at once if the disk is too small, kCancelled after `*cancel` became true, kIo,
// kBadFile for a weight that is not finite. What is finished stays for the next run.
void RunConversion(ConversionPlan* plan, const ProgressFn& progress = {},
                   const std::atomic<bool>* cancel = nullptr);

// Sha256 in hexadecimal over the first row of every tensor outside the experts and of two experts a
// layer: tells checkpoints of equal shapes apart without reading them.
std::string SampleCheckpoint(const Checkpoint& checkpoint, const TensorTable& table);

}  // namespace hillstar
