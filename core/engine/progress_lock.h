// Progress lock and watchdog: which thread runs the progress loop, and checks for operations that no caller waits for.
#pragma once
#include <atomic>
#include <mutex>

#include "engine/driver.h"
#include "engine/submissions.h"
#include "engine/thread_waker.h"

namespace hvd {

class Watchdog {
 public:
  explicit Watchdog(Submissions* submissions);
  ~Watchdog() { close(); }
  Watchdog(const Watchdog&) = delete;

  // Start checking. Callable from any thread.
  void start();
  // Start checking if a schedule has begun with unattended operations.
  void start_if_needed() {
    if (submissions_->must_watch()) start();
  }
  // Readable when a check is due.
  int fd() const { return timer_; }
  // Run a check that is due: give up on schedules and groups that cannot complete.
  void look();

  void close();

 private:
  Submissions* submissions_;
  int timer_;
  std::atomic<bool> running_{false};
};

// Seconds after which a waiting or polling caller leaves a schedule because other ranks may never submit. Negotiation
// then tells which ranks are missing.
inline constexpr double kImpatientAfter = 2;

// Progress lock: decides whether the engine's thread or a waiting caller drives the engine, that is, runs its progress
// loop. A caller that drives saves the several microseconds that waking the thread would take.
//
//   the thread   run(): turns while something progresses -> park(): sleeps without the lock until the wakeup event, a
//                message or a timeout
//   a caller     drive(): turns until its operation is done. After a while without progress it leaves the rest to the
//                thread and sleeps on its operation; while only a peer's message is missing it may doze() with the lock
//
// A thread that releases the lock sets the matching sleep state, and wakes the engine's thread if there is work left.
class ProgressLock {
 public:
  // `spin`: true if there is a core for each rank.
  ProgressLock(Driver* driver, Observers* observers, ThreadWaker* waker, Watchdog* watchdog, bool spin);

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
    std::lock_guard progress_lock(mutex_);
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
  ThreadWaker* waker_;
  Watchdog* watchdog_;
  const bool spin_;
  bool parked_ = false;          // Guarded by the lock: the thread sleeps.
  double rest_ = 0;              // Guarded by the lock: longest sleep in seconds.
  Clock::duration spin_window_;  // Guarded by the lock: how long a driving caller spins before it sleeps.
  std::atomic<bool> stop_{false};
};

// Seconds a caller waits for an operation of a schedule before it checks whether that operation can ever complete.
inline constexpr double kNudgeAfter = 2e-3;

}  // namespace hvd
