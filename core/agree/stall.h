// Stall check on the coordinator: a warning after a while when operations wait for ranks that do not submit them, and
// later the end of the job if configured. Pure except for the log.
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

  // Check at most once a second. `told`: set if a warning was logged. An error means that the job must end (shutdown
  // time passed).
  Status check(const Negotiator& negotiator, double now, const LogSink& log, bool* told);

 private:
  double warning_, shutdown_;
  std::vector<std::string> labels_;
  double last_look_ = 0;
  double last_warning_ = 0;
};

// Stall check of each rank for its own waits, in addition to rank 0's (agree/stall.h). Whenever rank 0 reports a stall
// it sends the keys of all operations that it knows to wait. A rank reports by itself what it waits for and rank 0 does
// not know, or no longer reports. So no wait goes unreported for long, even if rank 0's check or rank 0 itself fails.
// Pure except for the log.

class LocalStallCheck {
 public:
  // Times as for StallCheck. `label`: label of this rank.
  LocalStallCheck(double warning, double shutdown, std::string label) : warning_(warning), shutdown_(shutdown), label_(std::move(label)) {}

  struct Waiting {
    std::string key;  // unique key of the operation; "": rank 0 cannot know it yet
    std::string what;  // description for messages
    double since;
  };
  // Record that rank 0 reports a stall and knows that these operations wait.
  void known(const std::vector<std::string>& keys, double now);
  // True if the next check is due.
  bool due(double now) const { return now - last_look_ >= kLook && warning_ + shutdown_ > 0; }
  // Check the waits of this rank. `why`: the cause, if this rank knows it. An error means that the job must end
  // (shutdown time passed).
  Status check(const std::vector<Waiting>& waiting, const std::string& why, double now, const LogSink& log);

  static constexpr double kLook = 1.0;  // seconds between checks
  // Seconds that rank 0 has to report before this rank does.
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
