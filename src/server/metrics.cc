#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace hillstar {
namespace {

using prometheus::Histogram;

// From a token of a small model on a GPU to minutes of a long prompt on a CPU.
const Histogram::BucketBoundaries kTokenSeconds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
                                                   0.05,   0.1,   0.2,   0.5,   1,    2};
const Histogram::BucketBoundaries kAnswerSeconds = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,  2,
                                                    5,    10,   30,   60,  120, 300, 600};

}  // namespace

struct ServerMetrics::Families {
  prometheus::Registry registry;

  prometheus::Family<prometheus::Counter>& Counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<prometheus::Gauge>& Gauges(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  Histogram& Times(const char* name, const char* help, const Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  prometheus::Family<prometheus::Counter>& replies =
      Counters("hillstar_http_replies_total", "Replies by route and status.");
  prometheus::Family<prometheus::Counter>& outcomes =
      Counters("hillstar_requests_total", "Requests for answers that ended, by outcome.");
  prometheus::Counter& done = outcomes.Add({{"outcome", "done"}});
  prometheus::Counter& failed = outcomes.Add({{"outcome", "failed"}});
  prometheus::Counter& cancelled = outcomes.Add({{"outcome", "cancelled"}});
  prometheus::Family<prometheus::Counter>& tokens =
      Counters("hillstar_tokens_total",
               "Tokens of ended requests: of prompts, of those taken from earlier requests, of "
               "answers, of those reasoning.");
  prometheus::Counter& prompt = tokens.Add({{"kind", "prompt"}});
  prometheus::Counter& cached = tokens.Add({{"kind", "cached"}});
  prometheus::Counter& answer = tokens.Add({{"kind", "answer"}});
  prometheus::Counter& reasoning = tokens.Add({{"kind", "reasoning"}});
  Histogram& queue =
      Times("hillstar_queue_seconds",
            "From a request's arrival to the first step that computes of it.", kAnswerSeconds);
  Histogram& first_token = Times("hillstar_time_to_first_token_seconds",
                                 "From a request's arrival to its first token.", kAnswerSeconds);
  Histogram& token = Times("hillstar_time_per_token_seconds",
                           "Mean time between an answer's tokens.", kTokenSeconds);
  Histogram& request =
      Times("hillstar_request_seconds", "From a request's arrival to its end.", kAnswerSeconds);

  prometheus::Family<prometheus::Gauge>& answers =
      Gauges("hillstar_answers", "Answers that run, wait, or are paused for lack of pages.");
  prometheus::Family<prometheus::Gauge>& pages =
      Gauges("hillstar_kv_pages", "Pages of the KV cache: all, in use, kept for others to adopt.");
  prometheus::Family<prometheus::Gauge>& memory =
      Gauges("hillstar_memory_bytes", "Memory that the model takes, by what for.");
  prometheus::Gauge& steps = Gauges("hillstar_steps", "Steps computed since the start.").Add({});
  prometheus::Gauge& step_seconds =
      Gauges("hillstar_step_seconds", "Time in which steps were computed since the start.").Add({});
  prometheus::Family<prometheus::Gauge>& stages =
      Gauges("hillstar_stage_seconds", "What the steps' time went to since the start.");
  prometheus::Family<prometheus::Gauge>& computed =
      Gauges("hillstar_computed_tokens", "Tokens that steps computed since the start.");
  prometheus::Gauge& pauses =
      Gauges("hillstar_pauses", "How often an answer was paused since the start.").Add({});
};

ServerMetrics::ServerMetrics() : families_(std::make_unique<Families>()) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::CountReply(const std::string& route, int status) {
  families_->replies.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
}

void ServerMetrics::AddReport(const JobReport& report) {
  Families& f = *families_;
  switch (report.outcome) {
    case JobReport::Outcome::kDone: f.done.Increment(); break;
    case JobReport::Outcome::kFailed: f.failed.Increment(); break;
    case JobReport::Outcome::kCancelled: f.cancelled.Increment(); break;
  }
  f.prompt.Increment(double(report.usage.prompt));
  f.cached.Increment(double(report.usage.cached));
  f.answer.Increment(double(report.usage.completion));
  f.reasoning.Increment(double(report.usage.reasoning));
  if (report.queue_seconds) f.queue.Observe(*report.queue_seconds);
  if (report.first_token_seconds) f.first_token.Observe(*report.first_token_seconds);
  for (const double seconds : report.token_seconds) f.token.Observe(seconds);
  f.request.Observe(report.seconds);
}

ServerMetrics::Totals ServerMetrics::totals() const {
  const Families& f = *families_;
  return {f.prompt.Value(), f.cached.Value(), f.answer.Value(),
          f.done.Value(),   f.failed.Value(), f.cancelled.Value()};
}

std::string ServerMetrics::Text(const ServiceSnapshot& snapshot, const EngineActivity& activity,
                                const MemoryPlan& memory) {
  Families& f = *families_;
  f.answers.Add({{"state", "running"}}).Set(double(snapshot.phases.running));
  f.answers.Add({{"state", "waiting"}}).Set(double(snapshot.phases.waiting));
  f.answers.Add({{"state", "paused"}}).Set(double(snapshot.phases.paused));
  const KvUse& kv = snapshot.kv;
  f.pages.Add({{"state", "total"}}).Set(double(kv.total_pages));
  f.pages.Add({{"state", "used"}}).Set(double(kv.total_pages - kv.available_pages));
  f.pages.Add({{"state", "prefix"}}).Set(double(kv.prefix_pages));
  f.memory.Add({{"part", "experts"}}).Set(double(memory.experts));
  f.memory.Add({{"part", "other_weights"}}).Set(double(memory.dense_weights));
  f.memory.Add({{"part", "latent_kv"}}).Set(double(memory.latent_kv));
  f.memory.Add({{"part", "index_keys"}}).Set(double(memory.index_keys));
  f.memory.Add({{"part", "workspace"}}).Set(double(memory.workspace));
  f.steps.Set(double(snapshot.counts.steps));
  f.computed.Add({{"kind", "prompt"}}).Set(double(snapshot.counts.prompt_tokens));
  f.computed.Add({{"kind", "answer"}}).Set(double(snapshot.counts.answer_tokens));
  f.step_seconds.Set(activity.step_seconds);
  for (const EngineActivity::StageTime& stage : activity.stages) {
    f.stages.Add({{"stage", stage.name}}).Set(stage.seconds);
  }
  f.pauses.Set(double(snapshot.counts.pauses));
  return prometheus::TextSerializer().Serialize(f.registry.Collect());
}

}  // namespace hillstar
