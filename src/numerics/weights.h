// How a weight matrix is held: integers with one scale per row and 64 inputs, cut into tiles of
// 16 rows x 64 inputs. The same bytes lie in the container, in RAM and on a GPU; docs/numerics.md
// gives the meaning and docs/container.md the byte layout. Views never own memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hillstar {

inline constexpr int kGroup = 64;         // inputs that share a scale
inline constexpr int kPanelRows = 16;     // rows of a panel: one SIMD lane or MMA row each
inline constexpr int kSegmentGroups = 8;  // groups whose products are summed before the next sum

// The numbers are part of the container's format: never renumber.
enum class WeightFormat : uint8_t {
  kF32 = 0,  // plain row-major floats: norms, router, indexer head weights
  kW4 = 1,   // value in [-8, 7], f16 scale
  kW8 = 2,   // value in [-127, 127], f16 scale
  kW15 = 3,  // 256 * hi + lo in 1/256 steps, hi in [-127, 127], lo in [-128, 127], f32 scale, which
             // our quantiser makes a power of two
};

// "f32", "w4", "w8", "w15".
const char* WeightFormatName(WeightFormat format);
// Bytes of one tile of 16 rows x 64 inputs: 544, 1056, 2112. REQUIRES format != kF32.
size_t TileBytes(WeightFormat format);
constexpr int64_t NumGroups(int64_t cols) { return (cols + kGroup - 1) / kGroup; }
constexpr int64_t NumPanels(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }
// Bytes of a whole matrix; rows are padded to whole panels and inputs to whole groups with zeros.
size_t MatrixBytes(WeightFormat format, int64_t rows, int64_t cols);

// A matrix [rows, cols] in `format` at `data` (64-byte aligned). Panel p holds rows 16p..16p+15;
// its tiles follow each other in ascending order of inputs. Panels lie `panel_stride` bytes apart
// (a gate matrix in an expert's image alternates with the up matrix).
struct WeightView {
  WeightFormat format = WeightFormat::kW8;
  int64_t rows = 0;
  int64_t cols = 0;
  const uint8_t* data = nullptr;
  size_t panel_stride = 0;

  constexpr const uint8_t* panel(int64_t p) const { return data + size_t(p) * panel_stride; }
};

// A view of a matrix whose panels follow each other without gaps.
WeightView DenseView(WeightFormat format, int64_t rows, int64_t cols, const uint8_t* data);

// The integers of 64 inputs of one row and their scale. Unused: lo for W4 and W8.
struct QuantisedGroup {
  int8_t hi[kGroup];
  int8_t lo[kGroup];
  float scale;  // already rounded to what the format stores
};

// Quantises 64 finite values. The scale is chosen and rounded first, then the values, so that the
// rounding of the scale costs nothing.
QuantisedGroup QuantiseWeights(WeightFormat format, const float* values);

// Packs `num_rows` (1..16) rows of f32 [num_rows][cols] into one panel at `out`
// (NumGroups(cols) * TileBytes(format) bytes); missing rows and inputs become zero.
void PackPanel(WeightFormat format, const float* rows, int num_rows, int64_t cols, uint8_t* out);

// Reads the integers and the scale of row `row` (0..15), as PackPanel wrote them, from one tile.
QuantisedGroup ReadTile(WeightFormat format, const uint8_t* tile, int row);

// The value that input i of a group stands for, as one float.
float DequantiseWeight(WeightFormat format, const QuantisedGroup& group, int i);
// Row `row` of `w` as f32 [cols].
void DequantiseRow(const WeightView& w, int64_t row, float* out);

// An expert's image: gate and up panels alternating (gate 0, up 0, gate 1, ...), then the down
// matrix' panels, padded with zeros to whole pages of 4 KiB.
struct ExpertShape {
  WeightFormat format;
  int64_t hidden;        // inputs of gate and up, rows of down
  int64_t intermediate;  // rows of gate and up, inputs of down
};
inline constexpr size_t kPageBytes = 4096;
constexpr size_t WholePages(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}
size_t ExpertImageBytes(const ExpertShape& shape);
struct ExpertViews {
  WeightView gate, up, down;
};
ExpertViews ViewExpert(const ExpertShape& shape, const uint8_t* image);
// Byte offset of a panel inside the image. matrix: 0 gate, 1 up, 2 down.
size_t ExpertPanelOffset(const ExpertShape& shape, int matrix, int64_t panel);

// IEEE binary16, round to nearest even; values beyond its range become infinite.
uint16_t FloatToHalf(float value);
float HalfToFloat(uint16_t bits);

}  // namespace hillstar
