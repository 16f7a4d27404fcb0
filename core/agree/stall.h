// Stall check on the coordinator. It warns when operations have waited too long for ranks that have not submitted them.
// After a second, longer timeout it can end the job. It does no I/O except for logging.
#pragma once
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "agree/negotiate.h"
#include "base/log.h"
#include "base/status.h"

namespace hvd {

class StallCheck {
 public:
  StallCheck(double warning, double shutdown, std::vector<std::string> labels)
      : warning_(warning), shutdown_(shutdown), labels_(std::move(labels)) {}

  // Check for stalls, at most once a second. `warned` is set to true if a warning was logged. An error means that the
  // shutdown timeout has passed and the job must end.
  Status check(const Negotiator& negotiator, double now, const LogSink& log, bool* warned);

 private:
  double warning_, shutdown_;
  std::vector<std::string> labels_;
  double last_look_ = 0;
  double last_warning_ = 0;
};

// Stall check of each rank for its own operations. When rank 0 reports a stall, it lists the operations that it knows to be waiting. Each
// rank then reports those of its waiting operations that the list lacks. Every long wait is thus reported, even if rank 0 fails. The check
// does no I/O except for logging.

class LocalStallCheck {
 public:
  // `warning` and `shutdown` are seconds until a warning and until the end of the job. `label` names this rank in error messages.
  LocalStallCheck(double warning, double shutdown, std::string label) : warning_(warning), shutdown_(shutdown), label_(std::move(label)) {}

  struct Waiting {
    // Unique key of the waiting operation, or empty if rank 0 cannot have heard of it yet.
    std::string key;
    // Description of the waiting operation, for error messages.
    std::string what;
    double since;
  };
  // Record that rank 0 has reported a stall and knows that the operations `keys` are waiting.
  void known(const std::vector<std::string>& keys, double now);
  // True if the next check is due.
  bool due(double now) const { return now - last_look_ >= kLook && warning_ + shutdown_ > 0; }
  // Check how long this rank's operations have been waiting. `why` is the cause of the stall, if this rank knows it. An
  // error means that the shutdown timeout has passed and the job must end.
  Status check(const std::vector<Waiting>& waiting, const std::string& why, double now, const LogSink& log);

  // Seconds between stall checks.
  static constexpr double kLook = 1.0;
  // Return how many seconds this rank waits for rank 0's report before it reports a stall itself.
  double grace() const;

 private:
  double warning_, shutdown_;
  std::string label_;
  std::unordered_set<std::string> known_;
  double known_at_ = 0;
  double last_look_ = 0;
  double last_warning_ = 0;
};

}  // namespace hvd
