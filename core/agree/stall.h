// Tells when operations wait for ranks that do not come: a warning after a while, the end of the job later if asked for. Runs on the
// coordinator; pure but for the log.
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

  // Looks at most once a second. `told`: it has just been reported. Not ok: the job has to end (shutdown time passed).
  Status check(const Negotiator& negotiator, double now, const LogSink& log, bool* told);

 private:
  double warning_, shutdown_;
  std::vector<std::string> labels_;
  double last_look_ = 0;
  double last_warning_ = 0;
};

}  // namespace hvd
