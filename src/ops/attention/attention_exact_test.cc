// The reference attention against a softmax in double precision, within a bound that follows from
// the roundings of the contract.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "kv/row_values.h"
#include "ops/attention/attention_test_inputs.h"

namespace hillstar {
namespace {

constexpr double kU = 0x1p-24;         // unit roundoff of f32
constexpr double kExpError = 0x1p-23;  // relative, of Exp (docs/numerics.md)
// Slack for products of errors, all of which are below 2^-8.
constexpr double kSecondOrder = 1 + 0x1p-6;

struct ExactKey {
  double score = 0;
  double score_error = 0;
  double scale = 0;             // of the latent planes
  std::vector<double> latents;  // in units of the scale
  std::vector<double> low;      // the low planes, likewise
};

// Two-plane rows: the whole product in units of 1 / 256 of the scales' product, and the part
// sum(lo lo) of it that PlaneProduct leaves out.
struct ExactProduct {
  double whole = 0;
  double left_out = 0;

  double rounded() const { return std::fabs(whole - left_out); }
};

ExactProduct ExactDot(const int8_t* hi, const int8_t* lo, const KvRowPart& part,
                      const uint8_t* row) {
  ExactProduct product;
  for (int64_t i = 0; i < part.padded; ++i) {
    const PlanePair key = RowValue(part, row, i);
    const double low = key.lo / 256.0;
    product.whole += (256.0 * hi[i] + lo[i]) * (key.hi + low);
    product.left_out += lo[i] * low;
  }
  return product;
}

// score = fma(float(latent), q * k, float(rope) * (q' * k')): the rope term has four roundings (the
// conversion, two products, the fma), the latent term three. What the dots leave out comes on top.
ExactKey MakeKey(const AttentionInputs& in, int64_t query, int64_t head, int64_t pos) {
  const KvRowLayout& layout = in.layout();
  const AttentionQuery q = in.Query(query, 1, nullptr);
  const int8_t *hi = q.hi + head * layout.padded(), *lo = q.lo + head * layout.padded();
  const KvRowPart latent = layout.latent_part(), rope = layout.rope_part();
  const uint8_t* row = in.row(pos);
  ExactKey key;
  key.scale = double{RowScale(latent, row)};
  const double latent_scale = double{q.latent_scale[head]} * key.scale;
  const double rope_scale = double{q.rope_scale[head]} * double{RowScale(rope, row)};
  const ExactProduct a = ExactDot(hi, lo, latent, row);
  const ExactProduct b = ExactDot(hi + latent.padded, lo + latent.padded, rope, row);
  key.score = latent_scale * a.whole + rope_scale * b.whole;
  key.score_error = latent_scale * (std::fabs(a.left_out) + 4 * kU * a.rounded()) +
                    rope_scale * (std::fabs(b.left_out) + 4 * kU * b.rounded());
  for (int64_t d = 0; d < layout.latent; ++d) {
    const PlanePair value = RowValue(latent, row, d);
    key.low.push_back(value.lo / 256.0);
    key.latents.push_back(value.hi + key.low.back());
  }
  return key;
}

// With m the largest score and p = exp(score - m), all in exact arithmetic, the reference computes
// num / den, num = sum p k V (k: the row's scale, V: its latent hi + lo / 256), den = sum p, both
// times one common factor that cancels.
//
// Relative error of p: the score's error; each subtraction before an exp rounds, by at most
//   u |score - m| in all since the arguments telescope; one exp of its own, 3 of later chunks, one
//   of its split and one for every later split, each with kExpError and one multiplication: eta =
//   score_error + u |score - m| + (5 + splits) (kExpError + u). Arguments below -87 give 0 instead
//   of less than 2^-125.
// num: w = p k rounds once; two planes with the chunk's scale cost at most 1.01 steps of
//   (largest w of the chunk) / 127 / 256 (half a step but where lo is cut); the product with the
//   values leaves out w.lo V.lo, |w.lo| <= 127 steps; its conversion rounds once, the fma once,
//   then two roundings for each of 3 later chunks, two for each later split: 9 + 2 splits.
// den: 3 + 4 additions in Sum64, an fma and a product for each of 3 later chunks, two for each
//   later split: 13 + 2 splits. The division rounds once.
struct ExactOutput {
  std::vector<double> value, bound;
};

ExactOutput ExactAttention(const std::vector<ExactKey>& keys) {
  const size_t n = keys.size(), latent = keys[0].latents.size();
  const double splits = static_cast<double>((n + kSplitKeys - 1) / kSplitKeys);
  double m = keys[0].score;
  for (const ExactKey& k : keys) m = std::max(m, k.score);
  std::vector<double> p(n), eta(n), step(n);
  double den = 0, den_error = 0;
  for (size_t i = 0; i < n; ++i) {
    p[i] = std::exp(keys[i].score - m);
    eta[i] = keys[i].score_error + kU * (m - keys[i].score) + (5 + splits) * (kExpError + kU);
    den += p[i];
    den_error += p[i] * (eta[i] + (13 + 2 * splits) * kU) + 0x1p-125;
  }
  for (size_t first = 0; first < n; first += kChunkKeys) {
    const size_t last = std::min(n, first + kChunkKeys);
    double largest = 0;
    for (size_t i = first; i < last; ++i) largest = std::max(largest, p[i] * keys[i].scale);
    for (size_t i = first; i < last; ++i) step[i] = largest / 127 / 256;
  }
  ExactOutput out;
  for (size_t d = 0; d < latent; ++d) {
    double num = 0, num_error = 0;
    for (size_t i = 0; i < n; ++i) {
      const double v = keys[i].latents[d], term = p[i] * keys[i].scale * v;
      num += term;
      num_error += std::fabs(term) * (eta[i] + (9 + 2 * splits) * kU) +
                   step[i] * (1.01 * std::fabs(v) + 127 * std::fabs(keys[i].low[d])) +
                   std::fabs(v) * 0x1p-92;
    }
    const double value = num / den;
    out.value.push_back(value);
    out.bound.push_back((num_error + std::fabs(value) * den_error) / den * kSecondOrder +
                        std::fabs(value) * kU);
  }
  return out;
}

void ExpectWithinBound(const AttentionInputs& in, const std::vector<int32_t>& list,
                       const std::string& note, double* worst) {
  const AlignedVector<float> actual = Attend(ReferenceKernels(), in, 0, list, in.heads());
  const size_t latent = static_cast<size_t>(in.layout().latent);
  for (int64_t h = 0; h < in.heads(); ++h) {
    std::vector<ExactKey> keys;
    for (int32_t pos : list) keys.push_back(MakeKey(in, 0, h, pos));
    const ExactOutput exact = ExactAttention(keys);
    for (size_t d = 0; d < latent; ++d) {
      const double value = exact.value[d], bound = exact.bound[d];
      const double error = std::fabs(double{actual[static_cast<size_t>(h) * latent + d]} - value);
      ASSERT_LE(error, bound) << note << " head " << h << " latent " << d << " value " << value;
      if (bound > 0) *worst = std::max(*worst, error / bound);
    }
  }
}

void ExpectFormatWithinBound(KvFormat format) {
  double worst = 0;
  for (int64_t num_keys : {1, 3, 64, 65, 256, 257, 700}) {
    for (float spread : {0.0f, 0.02f, 0.2f, 2.0f}) {
      AttentionInputs in({64, 16, format}, 2, num_keys, static_cast<uint64_t>(num_keys));
      in.Fill(ValueKind::kNormal, ValueKind::kNormal, 1, spread);
      std::vector<int32_t> list(static_cast<size_t>(num_keys));
      std::iota(list.begin(), list.end(), 0);
      const std::string note =
          fmt::format("format {} keys {} spread {}", int(format), num_keys, spread);
      ExpectWithinBound(in, list, note, &worst);
      list = in.SparseList();
      if (!list.empty()) ExpectWithinBound(in, list, note + " sparse", &worst);
    }
  }
  testing::Test::RecordProperty("worst_share_of_bound", fmt::format("{:.3f}", worst));
  EXPECT_GT(worst, 0.01) << "the bound is too loose to find a mistake";
}

TEST(AttentionExact, ReferenceIsWithinItsBoundOfASoftmaxInDoublePrecision) {
  for (KvFormat format : kAllKvFormats) ExpectFormatWithinBound(format);
}

TEST(AttentionExact, KeysOfVeryDifferentScales) {
  for (KvFormat format : kAllKvFormats) {
    double worst = 0;
    AttentionInputs in({32, 8, format}, 3, 300, 1);
    in.Fill(ValueKind::kNormal, ValueKind::kWideRange, 1, 0x1p-9f);
    std::vector<int32_t> list(300);
    std::iota(list.begin(), list.end(), 0);
    ExpectWithinBound(in, list, "wide range", &worst);
  }
}

// A single key is returned as it is stored, but for the planes of its weight and two roundings.
TEST(AttentionExact, OneKeyReturnsItsLatent) {
  for (KvFormat format : kAllKvFormats) {
    AttentionInputs in({64, 16, format}, 1, 1, 2);
    in.Fill(ValueKind::kNormal, ValueKind::kNormal, 1, 1.0f);
    const AlignedVector<float> out = Attend(ReferenceKernels(), in, 0, {0}, 1);
    const ExactKey key = MakeKey(in, 0, 0, 0);
    for (size_t d = 0; d < 64; ++d) {
      const double stored = key.scale * key.latents[d];
      EXPECT_NEAR(double{out[d]}, stored, std::fabs(stored) * 4 * kU) << d;
    }
  }
}

}  // namespace
}  // namespace hillstar
