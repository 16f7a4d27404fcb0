// Stall check on the coordinator: a warning after a while when operations wait for ranks that do not submit them, and
// later the end of the job if configured. Pure except for the log.
#pragma once
#include <set>
#include <string>

#include "agree/negotiate.h"
#include "base/log.h"

namespace hvd {

class Stall {
 public:
  Stall(double warning, double shutdown, std::vector<std::string> labels)
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

}  // namespace hvd
