// Everybody who listens to an engine. Without listeners beside the counters an event costs the driver one call of an empty or short
// function, and a submitting thread one load.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/ticks.h"
#include "engine/observer.h"

namespace hvd {

class Observers {
 public:
  // Any thread, at any time, even from within a call. The driver follows at its next turn: events of the turn that is under way may
  // still be missed by one that was added, or reach one that was removed, which lives until then.
  void add(std::shared_ptr<Observer> observer);
  void remove(const Observer* observer);

  // ---- the driver: whoever has the engine's baton --------------------------------------------------------------------------
  // At the beginning of a turn.
  void refresh() {
    if (changed_.load(std::memory_order_acquire)) follow();
  }
  template <typename... Parameters, typename... Arguments>
  void tell(void (Observer::*event)(Parameters...), const Arguments&... arguments) const {
    for (const auto& observer : followed_) (observer.get()->*event)(arguments...);
  }

  // ---- submitting threads ---------------------------------------------------------------------------------------------------
  void stamp(Operation& op) const {
    if (times_wanted_.load(std::memory_order_relaxed)) op.submitted_ticks = ticks();
  }
  template <typename... Parameters, typename... Arguments>
  void tell_submission(void (Observer::*event)(Parameters...), const Arguments&... arguments) const {
    if (!submissions_wanted_.load(std::memory_order_acquire)) return;
    for (const auto& observer : wanting_submissions()) (observer.get()->*event)(arguments...);
  }

 private:
  void follow();
  void changed();
  std::vector<std::shared_ptr<Observer>> wanting_submissions() const;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Observer>> all_;  // under it
  std::atomic<bool> changed_{false}, submissions_wanted_{false}, times_wanted_{false};
  std::vector<std::shared_ptr<Observer>> followed_;  // the driver's
};

}  // namespace hvd
