// Progress lock: decides whether the engine's thread or a waiting caller drives the engine, that is, runs its progress
// loop. A caller that drives saves the several microseconds that waking the thread would take.
//
//   the thread   run(): turns while something progresses -> park(): sleeps without the lock until the wakeup event, a
//                message or a timeout
//   a caller     drive(): turns until its operation is done. After a while without progress it leaves the rest to the
//                thread and sleeps on its operation; while only a peer's message is missing it may doze() with the lock
//
// A thread that releases the lock sets the matching mood, and wakes the engine's thread if there is work left.
#pragma once
#include <atomic>
#include <mutex>

#include "engine/alarm.h"
#include "engine/driver.h"
#include "engine/lookout.h"

namespace hvd {

class Baton {
 public:
  // `spin`: true if there is a core for each rank.
  Baton(Driver* driver, Observers* observers, Alarm* alarm, Lookout* lookout, bool spin);

  // Body of the engine's thread; returns after stop().
  void run();
  // Drive on behalf of a caller. Return true if the operation is done; otherwise the thread finishes it, and the caller
  // has reached `deadline` or a point where sleeping is better.
  bool drive(Operation& op, Deadline deadline);
  // Called by another thread: make run() return and end all sleeps.
  void stop();
  // Stop all driving permanently, after calling `last` with the lock held.
  template <class Last>
  void retire(Last last) {
    std::lock_guard baton(mutex_);
    last();
    driver_ = nullptr;
  }

 private:
  bool doze(Operation& op, Deadline deadline);
  void park();
  void release();
  bool stopping() const { return stop_.load(std::memory_order_seq_cst); }

  std::mutex mutex_;
  Driver* driver_;  // accessed only while holding the lock
  Observers* observers_;
  Alarm* alarm_;
  Lookout* lookout_;
  const bool spin_;
  bool parked_ = false;          // guarded by the lock: the thread sleeps
  double rest_ = 0;              // guarded by the lock: longest sleep in seconds
  Clock::duration spin_window_;  // guarded by the lock: how long a driving caller spins before it sleeps
  std::atomic<bool> stop_{false};
};

// Seconds a caller waits for an operation of a schedule before it checks whether that operation can ever complete.
inline constexpr double kNudgeAfter = 2e-3;

}  // namespace hvd
