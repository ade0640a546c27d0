// The public face: open a model, run sequences through it, read logits.
// An Engine is used by one thread at a time; its model data is immutable and may be shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hillstar/engine_activity.h"
#include "hillstar/error.h"
#include "hillstar/kernel_time.h"
#include "hillstar/sampling.h"

namespace hillstar {

class ChatFormat;
struct DeviceInfo;
struct KvShape;
class Tokenizer;
struct ModelConfig;

struct EngineOptions {
  std::string model;            // folder: Hillstar container, HF checkpoint or colibri container
  int num_threads = 0;          // 0: the physical cores this process may use
  std::string simd = "auto";    // auto, avx512, avx2, generic, reference
  std::string device = "auto";  // auto (a GPU that can compute and holds the model, else the CPU),
                                // cpu, cuda (the first GPU that can), cuda:N
  // The file of libhillstar_cuda.so; empty: beside the program's file, then the system's loader.
  std::string cuda_library;
  bool eager = false;           // on a GPU: no captured graphs
  int64_t context_tokens = 0;   // longest sequence; 0: the model's limit, at most 16384
  int64_t prefill_chunk = 512;  // tokens of a prompt computed in one step
  std::string weights = "w15";  // weights of a checkpoint that is opened unconverted: w15, w8, w4,
                                // pocket (experts w4, the rest w8)
  std::string attention = "auto";  // auto, dense, sparse, full-list: AttentionMode
  int64_t max_sequences = 1;       // that take part in one step, at most 512
  uint64_t kv_bytes = 0;           // pages of all sequences; 0: what kv_tokens, a context need
  int64_t kv_tokens = 0;           // of all sequences that are there at once; 0: context_tokens
  bool may_take_less_kv = false;   // kv_tokens is a wish: as many as the memory holds, a context at
                                   // least
  std::string kv_format = "q15";   // of latent KV rows: q15, q8, fp8
  // Of all buffers of the device in bytes; what would exceed it is refused as if the system had no
  // more. The check of the plan does not know of it.
  uint64_t memory_limit = std::numeric_limits<uint64_t>::max();
  bool load_mtp = true;   // load the MTP layer where the model has one
  bool for_chat = false;  // refuse a model that its own chat template cannot talk to
};

// Progress of a long operation: bytes done and in all. May be empty.
using ProgressFn = std::function<void(uint64_t done, uint64_t total)>;

// What lies where, in bytes; the same struct predicts (before loading) and reports. All but the
// program lies in the memory of the device that computes.
struct MemoryPlan {
  uint64_t dense_weights = 0;
  uint64_t experts = 0;
  uint64_t latent_kv = 0;   // of all pages
  uint64_t index_keys = 0;  // likewise
  uint64_t workspace = 0;
  uint64_t program = 0;  // code, tokenizer, threads: an allowance
  int64_t num_pages = 0;
  uint64_t page_addresses = 0;  // of workspace, which grows with num_pages
  uint64_t on_device() const {
    return dense_weights + experts + latent_kv + index_keys + workspace;
  }
  uint64_t total() const { return on_device() + program; }
};

enum class LogitsMode { kNone, kLast, kAll };

// Called with the residual stream before each layer (layer 0..n-1), after the last layer (layer n)
// and after the final norm (layer n + 1): `values` is f32 [num_tokens, hidden] from position `pos`.
using ResidualTap =
    std::function<void(int64_t layer, int64_t pos, int64_t num_tokens, const float* values)>;

// Called after the router of a MoE layer (the MTP layer's too, which is layer n) for tokens of one
// sequence from position `pos` on: gaps[t] is the score (with bias) of the last expert that a token
// chose minus that of the best expert that it did not, 1 where it chose all.
// Where the tap sets take_other[t], the token takes that other expert in place of its last one.
using RouterTap = std::function<void(int64_t layer, int64_t pos, std::span<const float> gaps,
                                     std::span<bool> take_other)>;

struct MtpToken {
  int32_t id = 0;
  float margin = 0;  // its logit minus the next largest
};

// How a sequence is made.
struct SequenceOptions {
  bool keep_hidden = false;     // for MtpArgmax; such a sequence shares no pages
  bool shares_prefixes = true;  // its full pages are offered to others, AdoptPrefix takes theirs
};

// Fills a page's rows of all layers: the bytes of its latents, then of its index keys.
using ReadPageFn =
    std::function<void(int64_t page, std::span<uint8_t> latents, std::span<uint8_t> index_keys)>;

// One request's tokens and their KV rows. Destroyed before its Engine.
class Sequence {
 public:
  virtual ~Sequence() = default;
  virtual int64_t num_tokens() const = 0;
  // Appends tokens and computes them in chunks. Returns logits f32 [n, vocab] of the appended
  // tokens that `mode` asks for (n = 0, 1 or ids.size()); valid until the next call on the engine.
  // Errors: kBudget past the context, kBadRequest for an id outside the vocabulary, kCancelled if
  // *cancel became true between two layers (the sequence then keeps the tokens it had before),
  // kNonFinite naming layer and position (the sequence is then unusable).
  virtual std::span<const float> Append(std::span<const int32_t> ids, LogitsMode mode,
                                        const std::atomic<bool>* cancel = nullptr) = 0;
  // Engine::Decode for this sequence alone.
  virtual void Decode(int32_t next, const SamplingParams& sampling,
                      const std::function<bool(int32_t id)>& on_next,
                      const std::atomic<bool>* cancel = nullptr) = 0;
  // The MTP head over the tokens so far: for i = first .. num_tokens() - 2 the likeliest token
  // i + 2, given the hidden state at i and token i + 1: out[i - first].
  // REQUIRES: the sequence was made with keep_hidden. Errors: kUnsupported without an MTP layer.
  virtual std::vector<MtpToken> MtpArgmax(int64_t first) = 0;
  // Forgets everything after the first `num_tokens` tokens and gives their pages back.
  virtual void Truncate(int64_t num_tokens) = 0;
  // Keeps what the sequence has in common with `prompt`, or takes over from the prefix index where
  // that has more; drops the rest. Of the prompt all but the last token at most, since its logits
  // begin the answer. Returns how many tokens the sequence now holds.
  virtual int64_t AdoptPrefix(std::span<const int32_t> prompt) = 0;

  // Pages of 64 tokens that the sequence holds, the last perhaps not full.
  virtual int64_t num_pages() const = 0;
  // Those of them that other sequences hold too.
  virtual int64_t num_shared_pages() const = 0;
  // Page i's rows, Engine::page_bytes() in all. Rows behind num_tokens() hold anything.
  virtual void CopyPage(int64_t i, std::span<uint8_t> out) const = 0;
  // Replaces everything by `ids` whose pages `read` gives, as CopyPage gave them. Rows that this
  // engine would not compute from `ids` are for a sequence that does not share prefixes.
  // REQUIRES: the sequence was not made with keep_hidden, since pages hold no hidden states.
  // Errors: as Append, and what `read` throws; the sequence is then empty.
  virtual void Restore(std::span<const int32_t> ids, const ReadPageFn& read) = 0;
  virtual std::span<const int32_t> ids() const = 0;
};

// A sequence's part in a step of several.
struct StepPart {
  Sequence* sequence = nullptr;
  std::span<const int32_t> ids;  // its next tokens, at least one
  bool wants_logits = false;     // of the last one
  const std::atomic<bool>* cancel = nullptr;
  // Draws the token behind the last one where its logits are computed, which then go nowhere else.
  // REQUIRES: checked, without penalties; !wants_logits.
  const SamplingParams* draw = nullptr;
};
struct StepResult {
  std::span<const float> logits;  // f32 [vocab], or empty; valid until the next call on the engine
  int32_t drawn = -1;             // where `draw` was given and there is no error
  // As Append's, kNonFinite also for logits that no token can be drawn from; the sequence holds
  // what it had before.
  std::optional<Error> error;
};

// A sequence's part in decoding.
struct DecodePart {
  Sequence* sequence = nullptr;
  int32_t next = 0;  // its next token
  // How those behind it are drawn: by default the likeliest. REQUIRES: checked, without
  // penalties.
  SamplingParams sampling{.temperature = 0};
  const std::atomic<bool>* cancel = nullptr;
};
// Called with the tokens that a decode step drew, one for each part. False ends the decoding.
using NextTokensFn = std::function<bool(std::span<const int32_t> ids)>;

// Pages of 64 tokens.
struct KvUse {
  int64_t total_pages = 0;
  int64_t available_pages = 0;  // free, or kept only for others to adopt
  int64_t prefix_pages = 0;     // in the prefix index
};

class Engine {
 public:
  // Refuses before it loads what it cannot serve. Errors: kNotFound, kBadFile, kUnsupported, kUsage
  // naming the option, kDevice if the GPU that was asked for cannot compute, kBudget if the plan
  // exceeds the available memory; kIo while loading.
  static std::unique_ptr<Engine> Open(const EngineOptions& options,
                                      const ProgressFn& progress = {});
  virtual ~Engine() = default;

  virtual std::unique_ptr<Sequence> NewSequence(const SequenceOptions& options = {}) = 0;
  // One step for sequences of any lengths: the same bits as each alone. An error ends its own part
  // only. A part whose flag is set meanwhile leaves within two layers; a step of single tokens is
  // computed to its end on a GPU. The call returns when the others are done. REQUIRES: different
  // sequences, at most max_step_tokens() in all, at most EngineOptions::max_sequences parts;
  // results.size() == parts.size().
  virtual void Step(std::span<const StepPart> parts, std::span<StepResult> results) = 0;
  // Appends each part's next token, draws the token behind it and tells it, appends that, and so on
  // until on_next returns false: what it was told last is not appended. The tokens are those that a
  // Sampler draws from the logits. A GPU computes the next step while the host is still busy with
  // the last. Errors: as Step's, of the first part that has one, or what on_next throws; all
  // sequences then hold what was appended before that step (where on_next threw, that step's token
  // too), on every device. One part's cancel ends the call. REQUIRES as
  // Step; on_next neither computes with the engine nor changes or destroys the parts' sequences.
  virtual void Decode(std::span<const DecodePart> parts, const NextTokensFn& on_next) = 0;
  virtual int64_t max_step_tokens() const = 0;
  virtual int64_t max_sequences() const = 0;
  virtual KvUse kv_use() const = 0;
  // Bytes of one page's rows of all layers.
  virtual int64_t page_bytes() const = 0;
  virtual const KvShape& kv_shape() const = 0;
  // What saved rows depend on besides the tokens: sha256, in hexadecimal, of the model (see
  // ModelSource::Identity).
  virtual const std::string& identity() const = 0;
  // Both for looking inside; an empty function takes the tap away. The results stay the same unless
  // a router tap changes a choice.
  virtual void SetResidualTap(ResidualTap tap) = 0;
  // SetRouterTap: kUnsupported on a GPU.
  virtual void SetRouterTap(RouterTap tap) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const ChatFormat& chat_format() const = 0;
  virtual int64_t context_tokens() const = 0;
  virtual const DeviceInfo& device() const = 0;  // that computes
  // Threads of the host that compute, or with a GPU load.
  virtual int num_threads() const = 0;
  virtual std::string_view simd_level() const = 0;      // resolved; "cuda" on a GPU
  virtual std::string_view weight_summary() const = 0;  // e.g. "experts w4, rest w8"
  virtual std::string_view kv_format() const = 0;       // "q15", "q8", "fp8"
  // Whether an indexer chooses what tokens attend to; else that is everything.
  virtual bool selects_keys() const = 0;
  virtual MemoryPlan memory() const = 0;
  // Bytes of weights that one decoded token reads, for shares of a bandwidth bound.
  virtual uint64_t weight_bytes_per_token() const = 0;
  // Products of two bytes that a prompt of num_tokens asks for, for shares of a compute bound.
  virtual double prompt_products(int64_t num_tokens) const = 0;
  // The kernels of a step that appends `id` to the sequence, in their order, each with its time;
  // the sequence stays as it is, and activity() does not count it. Nothing where a CPU computes.
  virtual std::vector<KernelTime> ProfileStep(Sequence& sequence, int32_t id) = 0;
  // What was done so far. Waits for the device. REQUIRES: not called by Decode's on_next.
  virtual EngineActivity activity() = 0;
  // What the device can do at most, measured now. Of a CPU the products alone: how fast it reads
  // depends on where the weights lie.
  virtual DevicePeaks MeasureDevicePeaks() = 0;
  // Where the weights lie, for measuring how fast that memory can be read; empty on a GPU.
  virtual std::vector<std::span<const uint8_t>> weight_memory() const = 0;
  // generation_config.json's sampling values or the documented defaults.
  struct SamplingDefaults {
    float temperature, top_p;
  };
  virtual SamplingDefaults sampling_defaults() const = 0;
};

}  // namespace hillstar
