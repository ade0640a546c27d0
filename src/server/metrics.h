// What /metrics tells, in Prometheus' text format. Any thread.
#pragma once

#include <memory>
#include <string>

#include "server/answer_job.h"
#include "server/answer_service.h"

namespace hillstar {

class ServerMetrics {
 public:
  ServerMetrics();
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // A request that was answered, or refused, with this status.
  void CountReply(const std::string& route, int status);
  void AddReport(const JobReport& report);
  // Tokens and outcomes since the start.
  struct Totals {
    double prompt = 0, cached = 0, answer = 0;
    double done = 0, failed = 0, cancelled = 0;
  };
  Totals totals() const;
  // With the state of the service as it is now.
  std::string Text(const ServiceSnapshot& snapshot, const EngineActivity& activity,
                   const MemoryPlan& memory);

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace hillstar
