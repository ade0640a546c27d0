// Reads the saved conversations of the predecessor, colibri: .coli_kv files of versions 1 and 2.
// Their numbers are floats (version 2: FP8 codes with a scale a row) before this program's
// quantisation. They name no model: whoever opens one vouches that it came from this model.
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/file_io.h"

namespace hillstar {

// What the model has; the file must say the same. No index keys: index_head_dim and
// num_index_layers are 0.
struct ColibriKvShape {
  int32_t num_layers = 0;  // files have no rows of MTP layers
  int32_t latent = 0;      // values of a latent (kv_lora_rank)
  int32_t rope = 0;        // values of a rope part (qk_rope_head_dim)
  int32_t index_head_dim = 0;
  int32_t num_index_layers = 0;
  int32_t vocab = 0;
};

// One token's rows. Latents are normalised; rope parts and index keys are rotated, rope parts with
// their halves apart ([0, n/2) and [n/2, n) are the pairs).
struct ColibriKvRecord {
  int32_t token = 0;
  std::vector<float> latents;     // [num_layers, latent]
  std::vector<float> ropes;       // [num_layers, rope]
  std::vector<float> index_keys;  // [num_index_layers, index_head_dim]
  // Version 2 only, else empty: what latents and ropes were decoded from, value = e4m3 code *
  // scale.
  std::vector<uint8_t> latent_codes;  // [num_layers, latent]
  std::vector<uint8_t> rope_codes;    // [num_layers, rope]
  std::vector<float> latent_scales;   // [num_layers]
  std::vector<float> rope_scales;     // [num_layers]
};

class ColibriKvFile {
 public:
  // Errors: kNotFound, kIo; kBadFile for what is no such file or contradicts itself; kUnsupported
  // for version 3 and for sizes other than the model's, naming both.
  static ColibriKvFile Open(const std::filesystem::path& path, const ColibriKvShape& shape);

  int version() const { return version_; }
  // Records 0 .. this - 1 can be read. Fewer than the file promises if it is cut off, or once
  // ReadRecord has refused one.
  int64_t num_tokens() const { return num_tokens_; }
  // Sentences about what is missing or was mended.
  const std::vector<std::string>& findings() const { return findings_; }

  // False if the record holds a number that is not finite, a scale that is negative or larger than
  // FLT_MAX / 448, or a token outside the vocabulary: then it and all behind it are refused,
  // num_tokens() says so, findings() why. NaN codes of version 2 become 0, as the predecessor reads
  // them, in codes and values; the first record that had one is named. REQUIRES 0 <= index <
  // num_tokens(). Errors: kIo.
  bool ReadRecord(int64_t index, ColibriKvRecord* record);

 private:
  ColibriKvFile(File file, const ColibriKvShape& shape) : file_(std::move(file)), shape_(shape) {}

  void ReadHeader();
  void CompareSizes(const int32_t* header) const;
  void Decode(int64_t index, ColibriKvRecord* record);
  bool Refuse(int64_t index, const std::string& why);
  bool IsSound(int64_t index, const ColibriKvRecord& record);
  uint64_t RecordBytes() const;

  File file_;
  ColibriKvShape shape_;
  int version_ = 0;
  int64_t num_tokens_ = 0;
  bool has_mended_ = false;
  std::vector<std::string> findings_;
  std::vector<uint8_t> buffer_;  // one record
};

}  // namespace hillstar
