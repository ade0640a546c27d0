#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>

#include "core/check.h"
#include "core/thread_pool.h"
#include "model/weights.h"

namespace hillstar {
namespace {

// Expert images of one read: several megabytes keep a drive's queue full, and a layer is still cut
// into enough pieces for every thread.
constexpr size_t kReadBytes = size_t{32} << 20;

// Tensors too large for a device's memory to be filled at once wait on the host: so many bytes of
// them, or one that is larger.
constexpr size_t kStagedBytes = size_t{512} << 20;

// Runs jobs that may throw on a pool; the first error is thrown when all have ended.
class Jobs {
 public:
  explicit Jobs(int num_threads) : pool_(num_threads) {}

  void Run(int64_t n, const std::function<void(int64_t)>& job) {
    pool_.Run(n, [&](int64_t i, int) {
      if (failed_.load()) return;
      try {
        job(i);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        failed_.store(true);
      }
    });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  ThreadPool pool_;
  std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
};

// Fills a device's memory by pieces of any size. Any threads.
class Filler {
 public:
  explicit Filler(DeviceMemory& memory) : memory_(memory) {}

  using FillFn = std::function<void(uint8_t* host)>;
  // `fill` writes num_bytes. Errors: its own; kBudget.
  void Fill(uint8_t* to, size_t num_bytes, const FillFn& fill) {
    if (num_bytes <= memory_.fill_bytes()) {
      memory_.Fill(to, num_bytes, fill);
      return;
    }
    const Place place(*this, num_bytes);
    const HostBuffer whole(budget_, MemoryTag::kWorkspace, num_bytes);
    fill(whole.data());
    for (size_t at = 0; at < num_bytes; at += memory_.fill_bytes()) {
      const size_t n = std::min(memory_.fill_bytes(), num_bytes - at);
      memory_.Fill(to + at, n, [&](uint8_t* host) { std::memcpy(host, whole.data() + at, n); });
    }
  }

 private:
  // Some bytes of those that may be staged; waits for them.
  class Place {
   public:
    Place(Filler& filler, size_t num_bytes) : filler_(filler), num_bytes_(num_bytes) {
      std::unique_lock lock(filler_.mutex_);
      filler_.freed_.wait(lock, [&] {
        return filler_.staged_ == 0 || filler_.staged_ + num_bytes <= kStagedBytes;
      });
      filler_.staged_ += num_bytes;
    }
    ~Place() {
      std::lock_guard lock(filler_.mutex_);
      filler_.staged_ -= num_bytes_;
      filler_.freed_.notify_all();
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    Filler& filler_;
    const size_t num_bytes_;
  };

  DeviceMemory& memory_;
  MemoryBudget budget_;  // of the host
  std::mutex mutex_;
  std::condition_variable freed_;
  size_t staged_ = 0;
};

class Loader {
 public:
  Loader(const ModelSource& source, DeviceMemory& memory, int num_threads,
         const ProgressFn& progress)
      : source_(source), memory_(memory), filler_(memory), jobs_(num_threads), progress_(progress) {
    total_ = source.table().dense_bytes() + source.table().expert_bytes();
  }

  ModelWeights Load() {
    LoadDense();
    for (const ExpertLayerSpec& layer : source_.table().experts) LoadLayerExperts(layer);
    return std::move(weights_);
  }

  const std::map<std::string, WeightView>& views() const { return views_; }

 private:
  void LoadDense() {
    const std::vector<TensorSpec>& specs = source_.table().dense;
    weights_.dense_memory = memory_.Alloc(MemoryTag::kDenseWeights, source_.table().dense_bytes());
    uint8_t* at = weights_.dense_memory.data();
    std::vector<uint8_t*> places;
    for (const TensorSpec& spec : specs) {
      places.push_back(at);
      views_[spec.name] = DenseView(spec.format, spec.rows, spec.cols, at);
      at += WholePages(spec.num_bytes());
    }
    const auto load = [&](size_t i, const ParallelFor& parallel) {
      filler_.Fill(places[i], specs[i].num_bytes(),
                   [&](uint8_t* host) { source_.LoadTensor(specs[i], parallel, host); });
      Report(WholePages(specs[i].num_bytes()));
    };
    if (source_.is_container()) {  // read side by side; else packed one after another, in parallel
      jobs_.Run(int64_t(specs.size()), [&](int64_t i) { load(size_t(i), {}); });
    } else {
      const ParallelFor parallel = [this](int64_t n, const std::function<void(int64_t)>& job) {
        jobs_.Run(n, job);
      };
      for (size_t i = 0; i < specs.size(); ++i) load(i, parallel);
    }
  }

  void LoadLayerExperts(const ExpertLayerSpec& layer) {
    const size_t image = ExpertImageBytes(layer.shape);
    DeviceBuffer memory = memory_.Alloc(MemoryTag::kExperts, image * size_t(layer.num_experts));
    const size_t piece = std::min(kReadBytes, memory_.fill_bytes());
    const int64_t at_once = std::max<int64_t>(1, int64_t(piece / image));
    jobs_.Run((layer.num_experts + at_once - 1) / at_once, [&](int64_t i) {
      const int64_t first = i * at_once, count = std::min(at_once, layer.num_experts - first);
      uint8_t* to = memory.data() + size_t(first) * image;
      filler_.Fill(to, image * size_t(count),
                   [&](uint8_t* host) { source_.LoadExperts(layer, first, count, host); });
      Report(image * size_t(count));
    });
    weights_.expert_memory.push_back(std::move(memory));
  }

  void Report(uint64_t bytes) {
    std::lock_guard lock(progress_mutex_);
    done_ += bytes;
    if (progress_) progress_(done_, total_);
  }

  const ModelSource& source_;
  DeviceMemory& memory_;
  Filler filler_;
  Jobs jobs_;
  ProgressFn progress_;
  std::mutex progress_mutex_;
  uint64_t done_ = 0, total_ = 0;
  ModelWeights weights_;
  std::map<std::string, WeightView> views_;
};

// Gives the views their roles.
class Binder {
 public:
  Binder(const std::map<std::string, WeightView>& views, const ModelSource& source,
         ModelWeights* weights)
      : views_(views), source_(source), weights_(weights) {}

  void Bind() {
    const ModelConfig& config = source_.config();
    weights_->embed = Matrix("embed");
    weights_->head = Matrix("head");
    weights_->norm = Floats("norm");
    for (int64_t l = 0; l < config.num_layers; ++l) weights_->layers.push_back(Layer(l));
    if (config.num_mtp_layers == 0) return;
    prefix_ = "layers." + std::to_string(config.num_layers) + ".";
    MtpWeights mtp{Matrix(prefix_ + "eh_proj"), Floats(prefix_ + "enorm"),
                   Floats(prefix_ + "hnorm"), Floats(prefix_ + "head_norm"),
                   Layer(config.num_layers)};
    weights_->mtp = std::move(mtp);
  }

 private:
  WeightView Matrix(const std::string& name) const {
    const auto it = views_.find(name);
    CHECK(it != views_.end());
    return it->second;
  }
  const float* Floats(const std::string& name) const {
    return reinterpret_cast<const float*>(Matrix(name).data);
  }
  bool Has(const std::string& name) const { return views_.contains(name); }

  LayerWeights Layer(int64_t l) {
    prefix_ = "layers." + std::to_string(l) + ".";
    LayerWeights layer;
    layer.input_norm = Floats(prefix_ + "input_norm");
    layer.post_norm = Floats(prefix_ + "post_norm");
    layer.attention = Attention();
    if (Has(prefix_ + "router")) {
      layer.moe = Moe(l);
    } else {
      layer.dense = Mlp("");
    }
    return layer;
  }

  AttentionWeights Attention() const {
    AttentionWeights a;
    a.q_a = Matrix(prefix_ + "q_a");
    a.q_b = Matrix(prefix_ + "q_b");
    a.kv_a = Matrix(prefix_ + "kv_a");
    a.o = Matrix(prefix_ + "o");
    a.k_absorb = Matrix(prefix_ + "k_absorb");
    a.v_absorb = Matrix(prefix_ + "v_absorb");
    a.q_a_norm = Floats(prefix_ + "q_a_norm");
    a.kv_a_norm = Floats(prefix_ + "kv_a_norm");
    if (Has(prefix_ + "index_q")) {
      a.indexer =
          IndexerWeights{Matrix(prefix_ + "index_q"), Matrix(prefix_ + "index_k"),
                         Floats(prefix_ + "index_k_norm_weight"),
                         Floats(prefix_ + "index_k_norm_bias"), Floats(prefix_ + "index_weights")};
    }
    return a;
  }

  MlpWeights Mlp(const std::string& role) const {
    return {Matrix(prefix_ + role + "gate"), Matrix(prefix_ + role + "up"),
            Matrix(prefix_ + role + "down")};
  }

  MoeWeights Moe(int64_t l) const {
    MoeWeights moe;
    moe.router = Floats(prefix_ + "router");
    moe.router_bias = Floats(prefix_ + "router_bias");
    if (Has(prefix_ + "shared_gate")) moe.shared = Mlp("shared_");
    const std::vector<ExpertLayerSpec>& layers = source_.table().experts;
    const auto spec = std::find_if(layers.begin(), layers.end(),
                                   [&](const ExpertLayerSpec& s) { return s.layer == l; });
    CHECK(spec != layers.end());
    moe.shape = spec->shape;
    moe.image_bytes = ExpertImageBytes(spec->shape);
    moe.images = weights_->expert_memory[size_t(spec - layers.begin())].data();
    return moe;
  }

  const std::map<std::string, WeightView>& views_;
  const ModelSource& source_;
  ModelWeights* weights_;
  std::string prefix_;
};

}  // namespace

WeightView AttentionWeights::Head(const WeightView& all, int64_t h, int64_t rows) {
  WeightView view = all;
  view.rows = rows;
  view.data = all.panel(h * NumPanels(rows));
  return view;
}

ModelWeights LoadWeights(const ModelSource& source, DeviceMemory& memory, int num_threads,
                         const ProgressFn& progress) {
  Loader loader(source, memory, num_threads, progress);
  ModelWeights weights = loader.Load();
  Binder(loader.views(), source, &weights).Bind();
  return weights;
}

}  // namespace hillstar
