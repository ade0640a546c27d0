// Fills a container from a table of tensors: the loop that the converter and the generator of
// random models share. It needs memory for a slab of a tensor and for an image a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "formats/container_writer.h"
#include "hillstar/engine.h"
#include "model/tensor_table.h"

namespace hillstar {

// Where the bytes come from. Called from several threads at once; may throw.
class ContainerSource {
 public:
  virtual ~ContainerSource() = default;
  // The packed panels [first, first + count) of a tensor: PanelRangeBytes at `out`.
  virtual void FillPanels(const TensorSpec& spec, int64_t first, int64_t count,
                          uint8_t* out) const = 0;
  // One expert's image.
  virtual void FillExpert(const ExpertLayerSpec& layer, int64_t expert, uint8_t* out) const = 0;
};

struct BuildControl {
  int num_threads = 1;
  ProgressFn progress;                        // bytes of weights; one call at a time
  const std::atomic<bool>* cancel = nullptr;  // asked between slabs and between images
};

// The tensors and experts of the table as a job without side files.
ContainerJob ListJob(const TensorTable& table);

// Starts the writer, fills what is missing and finishes the container. The writer's job must come
// from ListJob(table). After an error or kCancelled the folder can be continued by a new writer.
void BuildContainer(const TensorTable& table, const ContainerSource& source,
                    const BuildControl& control, ContainerWriter* writer);

// "380.25 GB", "21.23 MB", "512 bytes".
std::string FormatBytes(uint64_t num_bytes);
// Lines about sizes and disk that the summaries of both end with.
std::string DescribeSizes(const TensorTable& table, const ContainerWriter& writer);

}  // namespace hillstar
