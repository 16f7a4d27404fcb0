// Observers of an engine. If only the counters are attached, an event costs the progress loop one call of a short function, and a
// submission costs one memory load.
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
  // Add or remove an observer. Callable from any thread at any time, even by an observer. Changes apply at the next turn of the progress
  // loop. Until then, a new observer misses events, and a removed observer still receives them and is kept alive.
  void add(std::shared_ptr<Observer> observer);
  void remove(const Observer* observer);

  // ---- Functions called by the driver, which holds the progress lock ------------------------------------------------

  // Apply pending changes to the list of observers, at the beginning of a turn of the progress loop.
  void refresh() {
    if (changed_.load(std::memory_order_acquire)) follow();
  }
  template <typename... Parameters, typename... Arguments>
  void notify(void (Observer::*event)(Parameters...), const Arguments&... arguments) const {
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
  // Copy of all_ for the thread that holds the progress lock, so no other lock is needed.
  std::vector<std::shared_ptr<Observer>> followed_;
};

// Message bus between observers of different ranks, routed through rank 0. The engine sends these messages along with its own, in the order
// of submission, without reading them. Observer::received() receives them.
//
// The bus is meant for short, occasional messages, such as reports about a waiting rank. Messages submitted during a
// collective are sent after it. Messages submitted after the end of the job are dropped.
struct ObserverMessage {
  // Receiving rank, or -1 for all ranks including rank 0. Used only on rank 0, because other ranks send only to rank 0.
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
  // Ask for a report of all waiting operations to the observers of rank 0 (Observer::waiting()). Callable from any thread.
  void ask_who_waits() {
    std::lock_guard lock(mutex_);
    asked_ = true;
    any_.store(true, std::memory_order_seq_cst);
  }

  // Record where a report on the ranks' activity was written, so that the error of a stall can name it. An empty `where` means that an
  // observer will write a report when it receives the waiting operations. Callable from any thread.
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
  // Members guarded by mutex_: the queued messages (waiting_), the path of the report on the ranks' activity (report_), and whether an
  // observer writes reports (reports_) and ask_who_waits() was called (asked_).
  std::vector<ObserverMessage> waiting_;
  std::string report_;
  bool reports_ = false;
  bool asked_ = false;
};

}  // namespace hvd
