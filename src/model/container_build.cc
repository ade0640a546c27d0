#include "model/container_build.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "core/thread_pool.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// Packed bytes of a tensor between two writes: enough jobs for many threads, little memory.
constexpr size_t kSlabBytes = size_t{32} << 20;
// f32 rows behind one job of a slab.
constexpr size_t kJobBytes = size_t{2} << 20;

// Memory that may be written to a drive past the page cache; grows, never shrinks.
class PageBuffer {
 public:
  uint8_t* Reserve(size_t num_bytes) {
    if (num_bytes > capacity_) {
      capacity_ = WholePages(num_bytes);
      data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, capacity_)));
      if (!data_) {
        throw Error(ErrorCode::kBudget,
                    fmt::format("there is no memory for a buffer of {} bytes", capacity_));
      }
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(uint8_t* data) const { std::free(data); }
  };
  std::unique_ptr<uint8_t, Free> data_;
  size_t capacity_ = 0;
};

// Jobs of `job_bytes` that fill about kSlabBytes and whole pages, so that the next slab begins on
// one.
int64_t JobsPerSlab(size_t job_bytes) {
  const size_t whole_pages = kPageBytes / std::gcd(kPageBytes, job_bytes);
  return int64_t(std::max<size_t>(1, kSlabBytes / (job_bytes * whole_pages)) * whole_pages);
}

// Runs the parts of one build on a pool; an error or the caller's wish to stop ends all of them.
class Builder {
 public:
  Builder(const TensorTable& table, const ContainerSource& source, const BuildControl& control,
          ContainerWriter* writer)
      : table_(table),
        source_(source),
        control_(control),
        writer_(writer),
        pool_(std::max(1, control.num_threads)) {}

  void Run() {
    writer_->Start();
    for (size_t i = 0; i < writer_->num_parts(); ++i) total_ += writer_->part(i).file_bytes();
    for (size_t i = 0; i < writer_->num_parts(); ++i) {
      ContainerPart& part = writer_->part(i);
      if (!part.is_finished()) {
        part.Start([this] { return stopped(); });
        done_ += part.written_bytes();
        Report(0);
        if (i == 0) {
          FillTensors(&part);
        } else {
          FillExperts(table_.experts[i - 1], &part);
        }
        part.Finish();
        done_ += part.file_bytes() - part.written_bytes();  // the gaps up to whole pages
        Report(0);
      } else {
        Report(part.file_bytes());
      }
    }
    writer_->Finish();
  }

 private:
  bool stopped() const { return control_.cancel != nullptr && control_.cancel->load(); }
  void ThrowIfStopped() const {
    if (stopped()) {
      throw Error(ErrorCode::kCancelled, fmt::format("stopped; the same command continues in {}",
                                                     writer_->folder().native()));
    }
  }

  void Report(uint64_t num_bytes) {
    std::lock_guard lock(mutex_);
    done_ += num_bytes;
    if (control_.progress) control_.progress(done_, total_);
  }

  // Jobs [0, n) on the pool, whose jobs must not throw: the first error ends the rest and is thrown
  // here.
  template <typename Fn>
  void ForEach(int64_t n, const Fn& fn) {
    std::exception_ptr error;
    std::atomic<bool> failed{false};
    pool_.Run(n, [&](int64_t i, int worker) {
      if (failed.load()) return;
      try {
        fn(i, worker);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!error) error = std::current_exception();
        failed.store(true);
      }
    });
    if (error) std::rethrow_exception(error);
  }

  void FillTensors(ContainerPart* part) {
    for (size_t t = 0; t < table_.dense.size(); ++t) {
      if (!part->has(t)) FillTensor(table_.dense[t], t, part);
    }
  }

  void FillTensor(const TensorSpec& spec, size_t index, ContainerPart* part) {
    const int64_t num_panels = NumPanels(spec.rows), job_panels = PanelsPerJob(spec, kJobBytes);
    const int64_t slab_jobs =
        JobsPerSlab(PanelRangeBytes(spec, 0, std::min(job_panels, num_panels)));
    ItemWriter item(part, index);
    for (int64_t first = 0; first < num_panels; first += slab_jobs * job_panels) {
      ThrowIfStopped();
      const int64_t count = std::min(slab_jobs * job_panels, num_panels - first);
      const size_t slab_bytes = PanelRangeBytes(spec, first, count);
      uint8_t* slab = slab_.Reserve(slab_bytes);
      ForEach((count + job_panels - 1) / job_panels, [&](int64_t job, int) {
        const int64_t at = job * job_panels, n = std::min(job_panels, count - at);
        source_.FillPanels(spec, first + at, n, slab + PanelRangeBytes(spec, first, at));
      });
      item.Append(slab, slab_bytes);
      Report(slab_bytes);
    }
    item.Complete();
  }

  void FillExperts(const ExpertLayerSpec& layer, ContainerPart* part) {
    std::vector<size_t> missing;
    for (size_t e = 0; e < part->items().size(); ++e) {
      if (!part->has(e)) missing.push_back(e);
    }
    images_.resize(size_t(pool_.num_threads()));
    ForEach(int64_t(missing.size()), [&](int64_t i, int worker) {
      ThrowIfStopped();
      const size_t expert = missing[size_t(i)];
      const size_t image_bytes = ExpertImageBytes(layer.shape);
      uint8_t* image = images_[size_t(worker)].Reserve(image_bytes);
      source_.FillExpert(layer, int64_t(expert), image);
      ItemWriter item(part, expert);
      item.Append(image, image_bytes);
      item.Complete();
      Report(image_bytes);
    });
  }

  const TensorTable& table_;
  const ContainerSource& source_;
  const BuildControl& control_;
  ContainerWriter* writer_;
  ThreadPool pool_;
  std::mutex mutex_;
  uint64_t done_ = 0, total_ = 0;
  PageBuffer slab_;
  std::vector<PageBuffer> images_;  // one a worker
};

}  // namespace

ContainerJob ListJob(const TensorTable& table) {
  ContainerJob job;
  for (const TensorSpec& spec : table.dense) {
    ContainerTensor tensor;
    tensor.name = spec.name;
    tensor.format = spec.format;
    tensor.rows = spec.rows;
    tensor.cols = spec.cols;
    job.tensors.push_back(std::move(tensor));
  }
  for (const ExpertLayerSpec& spec : table.experts) {
    ContainerExperts experts;
    experts.layer = spec.layer;
    experts.num_experts = spec.num_experts;
    experts.shape = spec.shape;
    job.experts.push_back(std::move(experts));
  }
  return job;
}

void BuildContainer(const TensorTable& table, const ContainerSource& source,
                    const BuildControl& control, ContainerWriter* writer) {
  CHECK(writer->num_parts() == table.experts.size() + 1);
  CHECK(writer->part(0).items().size() == table.dense.size());
  Builder(table, source, control, writer).Run();
}

std::string FormatBytes(uint64_t num_bytes) {
  if (num_bytes < 1000) return fmt::format("{} bytes", num_bytes);
  double value = double(num_bytes);
  const char* const units[] = {"kB", "MB", "GB", "TB"};
  size_t unit = 0;
  value /= 1000;
  while (value >= 1000 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, units[unit]);
}

std::string DescribeSizes(const TensorTable& table, const ContainerWriter& writer) {
  std::string text = fmt::format("dense      {} tensors, {}\n", table.dense.size(),
                                 FormatBytes(table.dense_bytes()));
  // Layers with equal images in one line: the MTP layer's may differ.
  for (size_t i = 0, next; i < table.experts.size(); i = next) {
    const ExpertLayerSpec& first = table.experts[i];
    const size_t image = ExpertImageBytes(first.shape);
    for (next = i; next < table.experts.size(); ++next) {
      if (table.experts[next].shape.format != first.shape.format) break;
    }
    const uint64_t count = uint64_t(next - i) * uint64_t(first.num_experts);
    text += fmt::format("experts    layers {} to {}: {} images of {} in {}, {}\n", first.layer,
                        table.experts[next - 1].layer, count, FormatBytes(image),
                        WeightFormatName(first.shape.format), FormatBytes(count * image));
  }
  const uint64_t total = writer.total_bytes(), finished = writer.finished_bytes();
  text += fmt::format("total      {}", FormatBytes(total));
  if (writer.continues()) text += fmt::format(", of which {} are written", FormatBytes(finished));
  const uint64_t available = writer.free_bytes();
  text += fmt::format("; {} free in {}{}\n", FormatBytes(available), writer.folder().native(),
                      total - std::min(total, finished) > available ? ": it does not fit" : "");
  return text;
}

}  // namespace hillstar
