// Probabilities of tokens from logits, and how two rows of logits differ, in double. Plain
// functions; any thread.
#pragma once

#include <cstdint>
#include <span>

namespace hillstar {

// log of the sum of exp of the logits: what a logit lacks to be a log-probability.
double LogSumExp(std::span<const float> logits);

// Minus the log of a token's probability, in nats. REQUIRES 0 <= id < logits.size().
double NegativeLogLikelihood(std::span<const float> logits, int32_t id);

// KL(p || q) = sum of p log(p / q), in nats, of the distributions of two rows of logits.
// REQUIRES p.size() == q.size().
double KlDivergence(std::span<const float> p, std::span<const float> q);

// Mean square of the logits without their mean. REQUIRES at least one.
double Variance(std::span<const float> logits);

// Root mean square of q - p relative to that of p, both without their means, which change no
// probability. Unlike KL it does not depend on how sure a model is. 0 where all of p are equal.
// REQUIRES p.size() == q.size().
double RelativeDifference(std::span<const float> p, std::span<const float> q);

}  // namespace hillstar
