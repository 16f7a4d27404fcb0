// Stall check on the coordinator. It warns when operations have waited too long for ranks that do not submit them, and
// can end the job after a second, longer time. It does no I/O except for the log.
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

  // Check for stalls, at most once a second. `told` is set to true if a warning was logged. An error means that the
  // shutdown time has passed, so the job must end.
  Status check(const Negotiator& negotiator, double now, const LogSink& log, bool* told);

 private:
  double warning_, shutdown_;
  std::vector<std::string> labels_;
  double last_look_ = 0;
  double last_warning_ = 0;
};

// Stall check that each rank makes for its own waits, in addition to rank 0's check above. Whenever rank 0 reports a
// stall it sends the keys of all operations that it knows to be waiting. Each rank itself reports a wait that rank 0
// does not know of or no longer reports. So every long wait is reported, even if rank 0 fails. It does no I/O except
// for the log.

class LocalStallCheck {
 public:
  // The times are in seconds, as for StallCheck. `label` names this rank in messages.
  LocalStallCheck(double warning, double shutdown, std::string label) : warning_(warning), shutdown_(shutdown), label_(std::move(label)) {}

  struct Waiting {
    std::string key;  // Unique key of the operation; empty if rank 0 cannot know it yet.
    std::string what;  // Description of the operation for messages.
    double since;
  };
  // Record that rank 0 reports a stall and knows that the operations `keys` are waiting.
  void known(const std::vector<std::string>& keys, double now);
  // True if the next check is due.
  bool due(double now) const { return now - last_look_ >= kLook && warning_ + shutdown_ > 0; }
  // Check the waits of this rank. `why` is the cause, if this rank knows it. An error means that the shutdown time has
  // passed, so the job must end.
  Status check(const std::vector<Waiting>& waiting, const std::string& why, double now, const LogSink& log);

  static constexpr double kLook = 1.0;  // Seconds between two checks.
  // Return the seconds that a rank gives rank 0 to report a stall before it reports the stall itself.
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
