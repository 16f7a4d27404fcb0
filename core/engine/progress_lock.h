// Progress lock, which decides which thread runs the progress loop, and the watchdog, which checks operations that no
// caller waits for.
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

  // Start periodic checks. Callable from any thread.
  void start();
  // Start periodic checks if a new schedule contains operations that no caller waits for.
  void start_if_needed() {
    if (submissions_->must_watch()) start();
  }
  // Return a file descriptor that becomes readable when the next check is due.
  int fd() const { return timer_; }
  // If a check is due, find operations that no caller waits for and that cannot complete. Leave their schedule or release their group.
  void look();

  void close();

 private:
  Submissions* submissions_;
  int timer_;
  std::atomic<bool> running_{false};
};

// Seconds of waiting or polling after which a rank returns from a schedule to negotiation. If other ranks never submit the operation, only
// negotiation can report which ones are missing.
inline constexpr double kImpatientAfter = 2;

// Lock that decides whether the engine's thread or a waiting caller runs the engine's progress loop ("drives" the engine). A caller that
// does so saves the several microseconds that waking the thread takes.
//
// The engine's thread runs turns of the progress loop (run()) as long as there is progress. It then releases the lock and sleeps until the
// wakeup event, a message or a timeout (park()). A waiting caller runs turns until its operation is done (drive()). After some time without
// progress, it leaves the loop to the thread and sleeps. While only a peer's message is missing, it can sleep with the lock held (doze()).
//
// A thread that releases the lock updates the sleep state, and wakes the engine's thread if work is left.
class ProgressLock {
 public:
  // `spin` is true if every rank has its own core.
  ProgressLock(Driver* driver, Observers* observers, ThreadWaker* waker, Watchdog* watchdog, bool spin);

  // Run the progress loop on the engine's thread until stop() is called.
  void run();
  // Run the progress loop on the calling thread, which waits for `op`. Return true if the operation is done. Return false after `deadline`,
  // or if the caller should sleep until the engine's thread has completed the operation.
  bool drive(Operation& op, Deadline deadline);
  // Make run() return, and wake all sleeping threads. Callable from another thread.
  void stop();
  // Call `last` with the lock held. No thread runs the progress loop afterwards.
  template <class Last>
  void retire(Last last) {
    std::lock_guard progress_lock(mutex_);
    last();
    driver_ = nullptr;
  }

 private:
  void lock_for_thread();
  bool lock_soon(const Operation& op);
  bool doze(Operation& op, Deadline deadline);
  void park();
  void release();
  bool stopping() const { return stop_.load(std::memory_order_seq_cst); }

  std::mutex mutex_;
  // True while the engine's thread waits for the lock.
  std::atomic<bool> thread_waits_{false};
  // The following members are accessed only while holding the lock.
  Driver* driver_;
  Observers* observers_;
  ThreadWaker* waker_;
  Watchdog* watchdog_;
  const bool spin_;
  // True while the thread sleeps; guarded by the lock.
  bool parked_ = false;
  // Maximum length of a sleep in seconds; guarded by the lock.
  double rest_ = 0;
  // Time for which a caller spins in the progress loop before it sleeps; guarded by the lock.
  Clock::duration spin_window_;
  std::atomic<bool> stop_{false};
};

// Seconds after which a waiting caller checks whether its operation can still complete in the schedule.
inline constexpr double kNudgeAfter = 2e-3;

}  // namespace hvd
