// A folder of safetensors that somebody else wrote: a Hugging Face checkpoint (BF16, F16, F32, or
// FP8 e4m3 with 128 x 128 block scales) or a container of the predecessor (colibri formats 1 to 5).
// Nothing in it is trusted. All const methods may be called from any thread at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hillstar {

// A matrix or vector by name. Scale tensors (`*_scale_inv`, `*.qs`) belong to their matrix and are
// not listed.
struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> shape;  // [out, in] or [n]; a colibri matrix whose shape the file does not
                               // hold has the shape that the caller's hint gave (see Open)
  std::string encoding;        // "BF16", "F16", "F32", "F8_E4M3", "colibri-int8", ...
  uint64_t stored_bytes = 0;   // scales included
};

// The shape that the model's configuration gives a tensor. colibri stores quantised matrices
// as flat bytes, so the layout can only be found with the expected shape.
struct ExpectedShape {
  std::string name;
  std::vector<int64_t> shape;
};

class Checkpoint {
 public:
  // Opens every shard, reads the headers, checks sizes, overlaps, duplicates and the index.
  // A model under another prefix (`model.language_model.`) is listed and found under `model.`.
  // Errors: kNotFound, kBadFile (naming shard and tensor), kUnsupported.
  static std::unique_ptr<Checkpoint> Open(const std::filesystem::path& folder);
  virtual ~Checkpoint() = default;

  // Text of config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
  // chat_template.jinja; empty where the file is missing.
  virtual std::string SideFile(std::string_view file_name) const = 0;

  virtual std::vector<CheckpointTensor> List() const = 0;
  virtual bool Has(std::string_view name) const = 0;
  // Checks that `name` exists and reads as `shape`, its scales present, finite and positive (more
  // than 256 KiB of scales: as ReadRows comes to them).
  // Must be called once for a tensor before ReadRows. Errors: kNotFound, kBadFile, kUnsupported.
  virtual void Expect(const ExpectedShape& tensor) = 0;
  // Rows [first_row, first_row + num_rows) as f32 [num_rows, in]; a vector is one row.
  // Errors: kIo, kBadFile for a value that is not finite.
  virtual void ReadRows(std::string_view name, int64_t first_row, int64_t num_rows,
                        float* out) const = 0;
};

}  // namespace hillstar
