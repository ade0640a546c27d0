// Linear layers, SwiGLU and experts on a GPU against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "ops/cuda_kernel_test.h"

namespace hillstar::cuda {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15};
constexpr int64_t kStrideSlack = 4;  // rows of y lie apart: what is between them is not written

// Planes on the device.
struct DevicePlanes {
  explicit DevicePlanes(const TestPlanes& x)
      : hi(x.hi), lo(x.lo), scale(x.scale), sum(x.sum), view(x.view) {
    view.hi = hi.data();
    view.lo = lo.data();
    view.scale = scale.data();
    view.sum = sum.data();
  }
  DeviceArray<int8_t> hi, lo;
  DeviceArray<float> scale;
  DeviceArray<int32_t> sum;
  ActivationPlanes view;
};

TestMatrix RandomMatrix(WeightFormat format, int64_t rows, int64_t cols, TestRandom& random) {
  return PackTestMatrix(format, rows, cols, TestValues(ValueKind::kNormal, rows * cols, random));
}

TestPlanes RandomPlanes(int64_t tokens, int64_t cols, TestRandom& random) {
  return QuantiseTestRows(tokens, cols, TestValues(ValueKind::kNormal, tokens * cols, random));
}

// Rows that are not quantised yet, with something between them.
struct TestFloats {
  TestFloats(int64_t num_rows, int64_t num_cols, TestRandom& random)
      : rows(num_rows),
        cols(num_cols),
        x(TestValues(ValueKind::kNormal, num_rows * (num_cols + kStrideSlack), random)),
        device_x(x) {}
  void Put(int64_t row, int64_t col, float value) {
    x[size_t(row * (cols + kStrideSlack) + col)] = value;
    device_x.Upload(x.data());
  }
  FloatRows OnDevice() const { return {device_x.data(), {}, 1, cols + kStrideSlack, 0}; }
  TestPlanes Planes() const {
    AlignedVector<float> dense;
    for (int64_t r = 0; r < rows; ++r) {
      const auto first = x.begin() + r * (cols + kStrideSlack);
      dense.insert(dense.end(), first, first + cols);
    }
    return QuantiseTestRows(rows, cols, dense);
  }

  int64_t rows, cols;
  AlignedVector<float> x;
  DeviceArray<float> device_x;
};

// A layer with all it needs on the device and on the host.
struct TestLayer {
  TestLayer(TestMatrix matrix, TestPlanes planes, int64_t tokens)
      : w(std::move(matrix)), x(std::move(planes)), device_w(w.bytes), device_x(x) {
    Shape(tokens);
  }
  void Shape(int64_t tokens) {
    slice.w = w.view;
    slice.x = x.view;
    slice.num_tokens = tokens;
    slice.num_panels = NumPanels(w.view.rows);
    slice.y_stride = w.view.rows + kStrideSlack;
    y = std::make_unique<DeviceArray<float>>(size_t(tokens * slice.y_stride));
  }
  void ChooseRows(std::vector<int32_t> list) {
    rows = std::move(list);
    device_rows = std::make_unique<DeviceArray<int32_t>>(rows);
    slice.x_rows = rows.data();
  }
  LinearSlice OnDevice() const {
    LinearSlice s = slice;
    s.w.data = device_w.data();
    s.x = device_x.view;
    s.y = y->data();
    if (s.x_rows) s.x_rows = device_rows->data();
    return s;
  }
  // What y must be: poison where nothing is written.
  AlignedVector<float> Want(const WeightView* up = nullptr) const {
    AlignedVector<float> want(y->size());
    if (!want.empty()) std::memset(want.data(), kPoisonByte, want.size() * sizeof(float));
    LinearSlice s = slice;
    s.y = want.data();
    if (up) {
      reference::SwiGlu({s, *up});
    } else {
      reference::Linear(s);
    }
    return want;
  }
  std::string Name() const {
    return fmt::format("{} [{}, {}], {} tokens", WeightFormatName(w.view.format), w.view.rows,
                       w.view.cols, slice.num_tokens);
  }

  TestMatrix w;
  TestPlanes x;
  std::vector<int32_t> rows;
  DeviceArray<uint8_t> device_w;
  DevicePlanes device_x;
  std::unique_ptr<DeviceArray<int32_t>> device_rows;
  std::unique_ptr<DeviceArray<float>> y;
  LinearSlice slice;
};

// Where both are NaN they are made equal: what is computed from values that are not finite has no
// sign that anybody promises.
void ForgetNan(std::vector<float>& got, const AlignedVector<float>& want) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) got[i] = want[i];
  }
}

void ExpectOutputs(const TestLayer& layer, const AlignedVector<float>& want,
                   const std::string& name) {
  std::vector<float> got = layer.y->Download();
  ForgetNan(got, want);
  EXPECT_EQ(FirstDifferenceOf(got, want), "") << name;
}

void ExpectLinear(const TestContext& context, const TestLayer& layer) {
  Linear(*context, std::array{layer.OnDevice()});
  ExpectOutputs(layer, layer.Want(), layer.Name());
}

void ExpectSwiGlu(const TestContext& context, const TestLayer& gate, const WeightView& up,
                  const WeightView& device_up) {
  SwiGlu(*context, {gate.OnDevice(), device_up});
  ExpectOutputs(gate, gate.Want(&up), "SwiGLU " + gate.Name());
}
void ExpectSwiGlu(const TestContext& context, const TestLayer& gate, const TestMatrix& up) {
  const DeviceArray<uint8_t> device_up(up.bytes);
  WeightView view = up.view;
  view.data = device_up.data();
  ExpectSwiGlu(context, gate, up.view, view);
}

// A device's sizes that decide how launches are laid out.
struct TestDevice {
  // A GPU's own size bounds what a block may ask for.
  void Limit(TestContext& context) const {
    context->shared_bytes = std::min(context->shared_bytes, shared_bytes);
    context->num_multiprocessors = num_multiprocessors;
  }
  int num_multiprocessors = 4;
  int shared_bytes = 227 << 10;
};

void ExpectShape(WeightFormat format, int64_t rows, int64_t cols,
                 const std::vector<int64_t>& token_counts, const TestDevice& device = {}) {
  TestRandom random(uint64_t(1000 * rows + cols));
  const int64_t most = *std::ranges::max_element(token_counts);
  TestLayer layer(RandomMatrix(format, rows, cols, random), RandomPlanes(most, cols, random), 1);
  const TestMatrix up = RandomMatrix(format, rows, cols, random);
  TestContext context;
  device.Limit(context);
  for (int64_t tokens : token_counts) {
    layer.Shape(tokens);
    ExpectLinear(context, layer);
    layer.Shape(tokens);
    ExpectSwiGlu(context, layer, up);
  }
}

TEST(LinearCuda, EveryShape) {
  HILLSTAR_NEEDS_GPU();
  for (WeightFormat format : kFormats) {
    for (int64_t cols : {64, 192, 384, 512, 576, 2048}) ExpectShape(format, 49, cols, {1, 3, 9});
    for (int64_t rows : {1, 15, 16, 17, 33, 130}) ExpectShape(format, rows, 192, {1, 5, 17});
    ExpectShape(format, 33, 576, {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64, 65});
    for (int64_t cols : {64, 192, 576, 1024}) ExpectShape(format, 49, cols, {66, 129});
    for (int64_t rows : {1, 16, 17, 31, 130, 260}) ExpectShape(format, rows, 128, {97, 201});
  }
}

// Blocks with less shared memory have fewer warps or shorter rings; more multiprocessors, fewer
// units a block.
TEST(LinearCuda, OtherDevices) {
  HILLSTAR_NEEDS_GPU();
  for (TestDevice device : {TestDevice{4, 99 << 10}, {132, 227 << 10}, {1, 163 << 10}}) {
    for (WeightFormat format : kFormats) {
      ExpectShape(format, 130, 576, {1, 8, 70}, device);
      ExpectShape(format, 33, 6144, {1, 7}, device);
    }
    ExpectShape(WeightFormat::kW4, 33, 16384, {1, 5}, device);
  }
}

TEST(LinearCuda, LongRows) {
  HILLSTAR_NEEDS_GPU();
  for (int64_t cols : {6144, 8192, 10304}) ExpectShape(WeightFormat::kW4, 49, cols, {1, 6});
  ExpectShape(WeightFormat::kW15, 17, 8256, {1, 9});
}

// More panels than blocks, so that a block goes round.
TEST(LinearCuda, ManyRows) {
  HILLSTAR_NEEDS_GPU();
  for (WeightFormat format : kFormats) ExpectShape(format, 1000, 576, {2});
  ExpectShape(WeightFormat::kW4, 1300, 64, {1, 40});
  ExpectShape(WeightFormat::kW4, 600, 8192, {1});
}

TEST(LinearCuda, ChosenRows) {
  HILLSTAR_NEEDS_GPU();
  const TestContext context;
  for (WeightFormat format : kFormats) {
    TestRandom random(5);
    TestLayer layer(RandomMatrix(format, 33, 192, random), RandomPlanes(40, 192, random), 9);
    layer.slice.x_first = 3;
    layer.slice.x_step = 2;
    ExpectLinear(context, layer);
    for (int64_t tokens : {2, 7, 12, 35}) {
      layer.Shape(tokens);
      std::vector<int32_t> rows;
      for (int64_t t = 0; t < tokens; ++t) rows.push_back(int32_t(random.Below(40)));
      layer.ChooseRows(rows);
      ExpectLinear(context, layer);
    }
  }
}

TEST(LinearCuda, SeveralLayersAtOnce) {
  HILLSTAR_NEEDS_GPU();
  const TestContext context;
  for (int64_t tokens : {1, 4, 11}) {
    TestRandom random(6);
    std::vector<std::unique_ptr<TestLayer>> layers;
    std::vector<LinearSlice> slices;
    const WeightFormat formats[] = {WeightFormat::kW4, WeightFormat::kW4, WeightFormat::kW8,
                                    WeightFormat::kW15, WeightFormat::kW4};
    const int64_t rows[] = {96, 17, 40, 16, 33}, cols[] = {576, 576, 576, 64, 192};
    for (size_t i = 0; i < std::size(formats); ++i) {
      layers.push_back(std::make_unique<TestLayer>(
          RandomMatrix(formats[i], rows[i], cols[i], random), RandomPlanes(tokens, cols[i], random),
          tokens - int64_t(i == 4 && tokens > 1)));
      slices.push_back(layers.back()->OnDevice());
    }
    Linear(*context, slices);
    for (const auto& layer : layers) {
      EXPECT_EQ(FirstDifferenceOf(layer->y->Download(), layer->Want()), "") << layer->Name();
    }
  }
}

TEST(LinearCuda, SwiGluOfTheSameMatrixTwice) {
  HILLSTAR_NEEDS_GPU();
  const TestContext context;
  for (WeightFormat format : kFormats) {
    TestRandom random(12);
    TestLayer layer(RandomMatrix(format, 40, 192, random), RandomPlanes(70, 192, random), 1);
    // Twice each: the emulated device has bulk copies in every other launch.
    for (int64_t tokens : {1, 1, 6, 6, 70, 70}) {
      layer.Shape(tokens);
      ExpectSwiGlu(context, layer, layer.w.view, layer.OnDevice().w);
    }
  }
}

TEST(LinearCuda, HeadsOfALayer) {
  HILLSTAR_NEEDS_GPU();
  const TestContext context;
  const int64_t heads = 5;
  struct HeadShape {
    int64_t rows, cols;
  };
  for (WeightFormat format : kFormats) {
    for (HeadShape shape : {HeadShape{48, 192}, HeadShape{20, 512}, HeadShape{256, 64}}) {
      TestRandom random(7);
      // Heads begin at whole panels.
      const int64_t padded = NumPanels(shape.rows) * kPanelRows;
      const TestMatrix w = RandomMatrix(format, heads * padded, shape.cols, random);
      for (int64_t tokens : {1, 3, 8, 9, 33}) {
        const TestPlanes x = RandomPlanes(tokens * heads, shape.cols, random);
        const DeviceArray<uint8_t> device_w(w.bytes);
        const DevicePlanes device_x(x);
        const DeviceArray<float> y(size_t(tokens * heads * shape.rows));
        ByHead layer{w.view, heads, shape.rows, device_x.view, tokens, y.data()};
        layer.w.data = device_w.data();
        LinearByHead(*context, layer);
        AlignedVector<float> want(y.size());
        for (int64_t h = 0; h < heads; ++h) {
          LinearSlice s;
          s.w = w.view;
          s.w.rows = shape.rows;
          s.w.data = w.view.panel(h * NumPanels(shape.rows));
          s.x = x.view;
          s.x_first = h;
          s.x_step = heads;
          s.num_tokens = tokens;
          s.num_panels = NumPanels(shape.rows);
          s.y = want.data() + h * shape.rows;
          s.y_stride = heads * shape.rows;
          reference::Linear(s);
        }
        EXPECT_EQ(FirstDifferenceOf(y.Download(), want), "")
            << WeightFormatName(format) << " " << shape.rows << " x " << shape.cols << ", "
            << tokens << " tokens";
      }
    }
  }
}

TEST(LinearCuda, FloatsAreQuantisedOnTheWay) {
  HILLSTAR_NEEDS_GPU();
  const TestContext context{2};
  TestRandom random(10);
  for (WeightFormat format : kFormats) {
    for (int64_t cols : {1, 63, 64, 130, 512, 576, 2048, 7000}) {
      for (int64_t tokens : {1, 2}) {
        const TestFloats x(tokens, cols, random);
        TestLayer layer(RandomMatrix(format, 40, cols, random), x.Planes(), tokens);
        LinearOfFloats(*context, layer.OnDevice(), x.OnDevice());
        ExpectOutputs(layer, layer.Want(), layer.Name());
      }
    }
  }
  EXPECT_EQ(context.bad(), (std::vector<int32_t>{0, 0}));
}

// A group with a value that is not finite counts as zeros, and its row's token is noted.
TEST(LinearCuda, FloatsThatAreNotFiniteAreNoted) {
  HILLSTAR_NEEDS_GPU();
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    const TestContext context{2};
    TestRandom random(11);
    TestFloats x(2, 300, random);
    TestLayer layer(RandomMatrix(WeightFormat::kW8, 40, 300, random), x.Planes(), 2);
    x.Put(1, 130, bad);
    LinearOfFloats(*context, layer.OnDevice(), x.OnDevice());
    for (int64_t i = 128; i < 192; ++i) x.x[size_t(300 + kStrideSlack + i)] = 0;
    TestLayer want(std::move(layer.w), x.Planes(), 2);
    EXPECT_EQ(FirstDifferenceOf(layer.y->Download(), want.Want()), "");
    EXPECT_EQ(context.bad(), (std::vector<int32_t>{0, 7}));
  }
}

TEST(LinearCuda, HeadsOfFloats) {
  HILLSTAR_NEEDS_GPU();
  const TestContext context{2};
  constexpr int64_t kHeads = 5, kRows = 48, kCols = 192, kHeadStride = 200;
  for (WeightFormat format : kFormats) {
    for (int64_t tokens : {1, 2}) {
      TestRandom random(12);
      const TestMatrix w = RandomMatrix(format, kHeads * kRows, kCols, random);
      const auto floats = TestValues(ValueKind::kNormal, tokens * kHeads * kHeadStride, random);
      AlignedVector<float> dense;
      for (int64_t r = 0; r < tokens * kHeads; ++r) {
        const auto first = floats.begin() + r * kHeadStride;
        dense.insert(dense.end(), first, first + kCols);
      }
      const TestPlanes x = QuantiseTestRows(tokens * kHeads, kCols, dense);
      const DeviceArray<uint8_t> device_w(w.bytes);
      const DeviceArray<float> device_floats(floats), y(size_t(tokens * kHeads * kRows));
      ByHead layer{w.view, kHeads, kRows, x.view, tokens, y.data()};
      layer.w.data = device_w.data();
      layer.floats = {
          device_floats.data(), {kHeads, nullptr}, kHeads, kHeads * kHeadStride, kHeadStride};
      LinearByHead(*context, layer);
      AlignedVector<float> want(y.size());
      for (int64_t h = 0; h < kHeads; ++h) {
        LinearSlice s;
        s.w = {format, kRows, kCols, w.view.panel(h * NumPanels(kRows)), w.view.panel_stride};
        s.x = x.view;
        s.x_first = h;
        s.x_step = kHeads;
        s.num_tokens = tokens;
        s.num_panels = NumPanels(kRows);
        s.y = want.data() + h * kRows;
        s.y_stride = kHeads * kRows;
        reference::Linear(s);
      }
      EXPECT_EQ(FirstDifferenceOf(y.Download(), want), "") << WeightFormatName(format);
    }
  }
}

TEST(LinearCuda, ExtremesOfThePlanesStayExact) {
  HILLSTAR_NEEDS_GPU();
  const TestContext context;
  for (WeightFormat format : kFormats) {
    const bool w4 = format == WeightFormat::kW4;
    for (int w_hi : {w4 ? -8 : -127, w4 ? 7 : 127}) {
      for (int w_lo : {-128, 127}) {
        for (int x_hi : {-127, 127}) {
          for (int64_t tokens : {1, 10}) {
            const int x_lo = x_hi;
            TestLayer layer(ConstantTestMatrix(format, 17, 576, w_hi, w_lo, 1.0f),
                            ConstantTestPlanes(tokens, 576, x_hi, x_lo, 1.0f), tokens);
            ExpectLinear(context, layer);
          }
        }
      }
    }
  }
}

TEST(LinearCuda, EveryKindOfValue) {
  HILLSTAR_NEEDS_GPU();
  const TestContext context;
  for (WeightFormat format : kFormats) {
    for (ValueKind weight_kind : kAllValueKinds) {
      if (weight_kind == ValueKind::kOutlier && format != WeightFormat::kW15) continue;
      for (ValueKind kind : kAllValueKinds) {
        TestRandom random(8);
        const int64_t tokens = kind == ValueKind::kNormal ? 9 : 2;
        TestLayer layer(PackTestMatrix(format, 17, 128, TestValues(weight_kind, 17 * 128, random)),
                        QuantiseTestRows(tokens, 128, TestValues(kind, tokens * 128, random)),
                        tokens);
        ExpectLinear(context, layer);
        layer.Shape(tokens);
        const TestMatrix up = RandomMatrix(format, 17, 128, random);
        ExpectSwiGlu(context, layer, up);
      }
    }
  }
}

// A layer of experts and a shared one, with as many tokens as `counts` says for each expert.
struct TestExperts {
  TestExperts(WeightFormat format, int64_t hidden, int64_t intermediate,
              const std::vector<int>& counts, int64_t tokens)
      : shape{format, hidden, intermediate}, num_tokens(tokens), random(9) {
    begin.push_back(0);
    for (int count : counts) {
      images.push_back(MakeImage());
      device_images.push_back(std::make_unique<DeviceArray<uint8_t>>(images.back()));
      addresses.push_back(device_images.back()->data());
      begin.push_back(begin.back() + count);
      for (int i = 0; i < count; ++i) slot_tokens.push_back(int32_t(random.Below(tokens)));
    }
  }
  AlignedVector<uint8_t> MakeImage() {
    AlignedVector<uint8_t> image(ExpertImageBytes(shape));
    const ExpertViews views = ViewExpert(shape, image.data());
    for (const WeightView& view : {views.gate, views.up, views.down}) {
      const auto values = TestValues(ValueKind::kNormal, view.rows * view.cols, random);
      for (int64_t p = 0; p < NumPanels(view.rows); ++p) {
        PackPanel(shape.format, values.data() + p * kPanelRows * view.cols,
                  int(std::min<int64_t>(kPanelRows, view.rows - p * kPanelRows)), view.cols,
                  image.data() + (view.panel(p) - image.data()));
      }
    }
    return image;
  }
  int64_t num_slots() const { return int64_t(slot_tokens.size()); }

  ExpertShape shape;
  int64_t num_tokens;
  TestRandom random;
  std::vector<AlignedVector<uint8_t>> images;
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> device_images;
  std::vector<const uint8_t*> addresses;
  std::vector<int32_t> begin, slot_tokens;
};

// `of_floats`: the second half quantises its inputs itself.
void ExpectExperts(TestExperts& experts, WeightFormat shared_format, int64_t shared_tokens,
                   bool of_floats = false, const TestDevice* device = nullptr) {
  const int64_t hidden = experts.shape.hidden, intermediate = experts.shape.intermediate;
  const int64_t shared_width = 40, slots = experts.num_slots();
  TestRandom& random = experts.random;
  TestContext context;
  if (device) device->Limit(context);
  const DeviceArray<const uint8_t*> images(experts.addresses);
  const DeviceArray<int32_t> begin(experts.begin), slot_tokens(experts.slot_tokens);
  const ExpertTask task{images.data(),     experts.shape,      int64_t(experts.images.size()),
                        begin.data(),      slot_tokens.data(), slots,
                        experts.num_tokens};
  const std::string name =
      fmt::format("{}, {} slots, shared {}", WeightFormatName(experts.shape.format), slots,
                  WeightFormatName(shared_format));

  const TestPlanes x = RandomPlanes(experts.num_tokens, hidden, random);
  const DevicePlanes device_x(x);
  TestLayer shared_up(RandomMatrix(shared_format, shared_width, hidden, random),
                      RandomPlanes(std::max<int64_t>(shared_tokens, 1), hidden, random),
                      shared_tokens);
  const TestMatrix up = RandomMatrix(shared_format, shared_width, hidden, random);
  const DeviceArray<uint8_t> device_up(up.bytes);
  WeightView up_view = up.view;
  up_view.data = device_up.data();
  const DeviceArray<float> got_hidden(size_t(slots * intermediate));
  ExpertsUp(*context, task, device_x.view, got_hidden.data(), {shared_up.OnDevice(), up_view});

  const TestFloats h_floats(slots, intermediate, random),
      shared_floats(std::max<int64_t>(shared_tokens, 1), shared_width, random);
  const TestPlanes h = h_floats.Planes();
  const DevicePlanes device_h(h);
  TestLayer shared_down(RandomMatrix(shared_format, hidden, shared_width, random),
                        shared_floats.Planes(), shared_tokens);
  const DeviceArray<float> got_rows(size_t(slots * hidden));
  HiddenFloats floats;
  if (of_floats) floats = {h_floats.OnDevice(), shared_floats.OnDevice()};
  ExpertsDown(*context, task, device_h.view, got_rows.data(), shared_down.OnDevice(), floats);

  AlignedVector<float> want_hidden(got_hidden.size()), want_rows(got_rows.size());
  for (size_t e = 0; e < experts.images.size(); ++e) {
    const ExpertViews views = ViewExpert(experts.shape, experts.images[e].data());
    const int64_t first = experts.begin[e];
    LinearSlice s;
    s.w = views.gate;
    s.x = x.view;
    s.x_rows = experts.slot_tokens.data() + first;
    s.num_tokens = experts.begin[e + 1] - first;
    s.num_panels = NumPanels(intermediate);
    s.y = want_hidden.data() + first * intermediate;
    s.y_stride = intermediate;
    reference::SwiGlu({s, views.up});
    s.w = views.down;
    s.x = h.view;
    s.x_rows = nullptr;
    s.x_first = first;
    s.num_panels = NumPanels(hidden);
    s.y = want_rows.data() + first * hidden;
    s.y_stride = hidden;
    reference::Linear(s);
  }
  EXPECT_EQ(FirstDifferenceOf(got_hidden.Download(), want_hidden), "") << "up, " << name;
  EXPECT_EQ(FirstDifferenceOf(got_rows.Download(), want_rows), "") << "down, " << name;
  EXPECT_EQ(FirstDifferenceOf(shared_up.y->Download(), shared_up.Want(&up.view)), "") << name;
  EXPECT_EQ(FirstDifferenceOf(shared_down.y->Download(), shared_down.Want()), "") << name;
}

TEST(LinearCuda, ExpertsOfFewTokens) {
  HILLSTAR_NEEDS_GPU();
  for (WeightFormat format : kFormats) {
    TestExperts one(format, 192, 48, {0, 1, 0, 0, 1, 1}, 1);
    ExpectExperts(one, format, 1);
    TestExperts few(format, 192, 33, {0, 1, 3, 5, 0, 4, 2, 1}, 8);
    ExpectExperts(few, format, 8);
    TestExperts rare(format, 192, 33, {0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 2}, 7);
    ExpectExperts(rare, format, 7);
    TestExperts some(format, 192, 33, {0, 1, 13, 5, 0, 14, 20, 1, 9}, 21);
    ExpectExperts(some, format, 21);
  }
  TestExperts wide(WeightFormat::kW4, 640, 560, {1, 0, 2, 1}, 2);
  ExpectExperts(wide, WeightFormat::kW4, 2);
}

TEST(LinearCuda, ExpertsOfManyTokens) {
  HILLSTAR_NEEDS_GPU();
  for (WeightFormat format : kFormats) {
    TestExperts experts(format, 192, 80, {0, 1, 3, 20, 0, 35, 70}, 73);
    ExpectExperts(experts, format, 73);
  }
}

// So many that tiles of more tokens pay.
TEST(LinearCuda, ExpertsOfVeryManyTokens) {
  HILLSTAR_NEEDS_GPU();
  for (WeightFormat format : kFormats) {
    TestExperts experts(format, 128, 80, {150, 1, 0, 260}, 90);
    ExpectExperts(experts, format, 90);
  }
}

TEST(LinearCuda, ExpertsWithNoOrAnotherSharedOne) {
  HILLSTAR_NEEDS_GPU();
  TestExperts experts(WeightFormat::kW4, 128, 64, {2, 0, 1}, 2);
  ExpectExperts(experts, WeightFormat::kW8, 2);
  ExpectExperts(experts, WeightFormat::kW4, 0);
}

TEST(LinearCuda, ExpertsOfFloats) {
  HILLSTAR_NEEDS_GPU();
  for (WeightFormat format : kFormats) {
    TestExperts one(format, 192, 48, {0, 1, 0, 0, 1, 1}, 1);
    ExpectExperts(one, format, 1, true);
    TestExperts two(format, 192, 560, {0, 1, 2, 0, 1}, 2);
    ExpectExperts(two, format, 2, true);
    ExpectExperts(two, format == WeightFormat::kW8 ? WeightFormat::kW4 : WeightFormat::kW8, 2,
                  true);
  }
}

// Every kernel, with so much to do for a block that it uses each slot of its rings again: for
// compute-sanitizer's racecheck.
TEST(LinearCuda, RingsGoRound) {
  HILLSTAR_NEEDS_GPU();
  const TestDevice device{.num_multiprocessors = 1};
  for (WeightFormat format : kFormats) {
    ExpectShape(format, 1090, 1024, {1, 5}, device);      // few tokens: one tile, two
    ExpectShape(format, 17, 1088, {9, 33, 129}, device);  // many: the sizes of tiles
    TestExperts one(format, 1088, 330, {0, 1, 0, 1}, 1);
    ExpectExperts(one, format, 1, /*of_floats=*/false, &device);
    ExpectExperts(one, format, 1, /*of_floats=*/true, &device);
    TestExperts few(format, 1088, 330, {0, 5, 3, 0}, 7);
    ExpectExperts(few, format, 7, /*of_floats=*/false, &device);
    TestExperts many(format, 1088, 33, {40, 0}, 9);
    ExpectExperts(many, format, 9, /*of_floats=*/false, &device);
    TestExperts most(format, 1088, 33, {150, 50}, 9);
    ExpectExperts(most, format, 9, /*of_floats=*/false, &device);
  }
}

}  // namespace
}  // namespace hillstar::cuda
