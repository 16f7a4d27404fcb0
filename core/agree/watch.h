// Every rank's own watch over what waits on it, beside rank 0's stall check (agree/stall.h). Rank 0 tells, whenever it reports a stall, all
// that it knows to wait; what a rank waits for and rank 0 does not know, or no longer says anything about, the rank reports itself. So
// nothing that a program waits for can wait for long unseen, whatever goes wrong with the others' checks or with rank 0. Pure but for the
// log.
#pragma once
#include <string>
#include <unordered_set>
#include <vector>

#include "base/log.h"
#include "base/status.h"

namespace hvd {

class Watch {
 public:
  // Times as for Stall. `label`: this rank's.
  Watch(double warning, double shutdown, std::string label) : warning_(warning), shutdown_(shutdown), label_(std::move(label)) {}

  struct Waiting {
    std::string key;  // of the operation, among all that wait; "": rank 0 cannot know of it yet
    std::string what;  // for people
    double since;
  };
  // Rank 0 reports a stall, and knows that these wait.
  void known(const std::vector<std::string>& keys, double now);
  // Time to look again?
  bool due(double now) const { return now - last_look_ >= kLook && warning_ + shutdown_ > 0; }
  // `why`: what this rank itself waits for, if it knows. Not ok: the job has to end (shutdown time passed).
  Status check(const std::vector<Waiting>& waiting, const std::string& why, double now, const LogSink& log);

  static constexpr double kLook = 1.0;  // seconds
  // How long rank 0 has the first word.
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
