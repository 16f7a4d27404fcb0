// The observers of an engine. With only the counters attached, an event costs the driver one call of an empty or short
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
  // Callable from any thread at any time, even inside an observer call. The driver applies changes at its next turn:
  // until then an added observer may miss events, and a removed one may still receive them (it is kept alive).
  void add(std::shared_ptr<Observer> observer);
  void remove(const Observer* observer);

  // ---- called by the driver (holder of the progress lock) -----------------------------------------------------------
  // Apply changes; called at the beginning of a turn.
  void refresh() {
    if (changed_.load(std::memory_order_acquire)) follow();
  }
  template <typename... Parameters, typename... Arguments>
  void tell(void (Observer::*event)(Parameters...), const Arguments&... arguments) const {
    for (const auto& observer : followed_) (observer.get()->*event)(arguments...);
  }

  // ---- called by submitting threads ---------------------------------------------------------------------------------
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
  std::vector<std::shared_ptr<Observer>> all_;  // guarded by mutex_
  std::atomic<bool> changed_{false}, submissions_wanted_{false}, times_wanted_{false};
  std::vector<std::shared_ptr<Observer>> followed_;  // used by the driver only
};

}  // namespace hvd
