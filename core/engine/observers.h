// Observers of an engine. With only the counters attached, each event costs the progress loop one call of an empty or
// short function. It costs a submitting thread one memory load.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/ticks.h"
#include "engine/observer.h"

namespace hvd {

class Observers {
 public:
  // Add or remove an observer. Callable from any thread at any time, even inside an observer call. The driver applies
  // changes at its next iteration. Until then, a new observer can miss events, and a removed observer can still receive
  // events and is kept alive.
  void add(std::shared_ptr<Observer> observer);
  void remove(const Observer* observer);

  // ---- Functions called by the driver, which holds the progress lock ------------------------------------------------

  // Apply pending changes to the list of observers. Called at the beginning of each iteration of the progress loop.
  void refresh() {
    if (changed_.load(std::memory_order_acquire)) follow();
  }
  template <typename... Parameters, typename... Arguments>
  void tell(void (Observer::*event)(Parameters...), const Arguments&... arguments) const {
    for (const auto& observer : followed_) (observer.get()->*event)(arguments...);
  }

  // ---- Functions called by submitting threads -----------------------------------------------------------------------
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
  // All registered observers, guarded by mutex_.
  std::vector<std::shared_ptr<Observer>> all_;
  std::atomic<bool> changed_{false}, submissions_wanted_{false}, times_wanted_{false};
  // Copy of all_. Only the driver uses it, so no lock is needed.
  std::vector<std::shared_ptr<Observer>> followed_;
};

// Message bus between observers of different ranks, routed through rank 0. The engine carries these messages alongside
// its own, in the order of submission, and does not read them. Observer::received() receives them.
//
// The bus is meant for short, occasional messages, such as reports about a waiting rank. Messages submitted during a
// collective are sent after it. Messages submitted after the end of the job are dropped.
struct ObserverMessage {
  // Receiving rank, or -1 for all ranks including rank 0. Only rank 0 uses this field, because other ranks always send
  // to rank 0.
  int32_t to;
  uint32_t topic;
  std::string body;
};

class MessageBus {
 public:
  static constexpr size_t kMaxBytes = 1 << 20, kMaxWaiting = 256;

  // Queue a message. Return false if it is too long or too many messages are queued. Callable from any thread.
  bool post(ObserverMessage message) {
    if (message.body.size() > kMaxBytes) return false;
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMaxWaiting) return false;
    waiting_.push_back(std::move(message));
    any_.store(true, std::memory_order_seq_cst);
    return true;
  }
  // On rank 0, report all waiting operations to the observers; see Observer::waiting(). Callable from any thread.
  void ask_who_waits() {
    std::lock_guard lock(mutex_);
    asked_ = true;
    any_.store(true, std::memory_order_seq_cst);
  }

  // Record where a report on the ranks' activity was written, so that the error of a stall timeout can name it. An
  // empty `where` means that no report exists yet, but an observer will write one when it receives the waiting
  // operations. Callable from any thread.
  void set_report(std::string where) {
    std::lock_guard lock(mutex_);
    report_ = std::move(where);
    reports_ = true;
  }
  bool report_may_come() const {
    std::lock_guard lock(mutex_);
    return reports_ && report_.empty();
  }
  std::string report() const {
    std::lock_guard lock(mutex_);
    return report_;
  }

  // ---- Functions called by the driver -------------------------------------------------------------------------------
  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::vector<ObserverMessage> take(bool* asked) {
    std::lock_guard lock(mutex_);
    any_.store(false, std::memory_order_seq_cst);
    *asked = std::exchange(asked_, false);
    return std::exchange(waiting_, {});
  }

 private:
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  // Queued messages (waiting_). For the report on the ranks' activity: its path (report_), and true if an observer
  // writes such reports (reports_). True if ask_who_waits() was called (asked_). All are guarded by mutex_.
  std::vector<ObserverMessage> waiting_;
  std::string report_;
  bool reports_ = false;
  bool asked_ = false;
};

}  // namespace hvd
