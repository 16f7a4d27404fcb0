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
  // If a check is due, check the operations for which no caller waits. Leave a schedule, or release a group, that
  // cannot complete.
  void look();

  void close();

 private:
  Submissions* submissions_;
  int timer_;
  std::atomic<bool> running_{false};
};

// Seconds after which a waiting or polling caller makes this rank return from a schedule to negotiation. Other ranks
// might never submit the operation, and only negotiation can report which ranks are missing.
inline constexpr double kImpatientAfter = 2;

// Lock that decides whether the engine's thread or a waiting caller "drives" the engine (runs its progress loop). A
// caller that does so saves the several microseconds that waking the thread takes.
//
// The engine's thread stays in run(). It runs iterations of the progress loop (turns) as long as there is progress.
// Then park() releases the lock and sleeps until the wakeup event, a message or a timeout. A caller in drive() runs
// turns until its operation is done. After some time without progress, it leaves the loop to the thread and sleeps
// until its operation is done. While only a peer's message is missing, it can sleep in doze() with the lock held.
//
// A thread that releases the lock sets the new sleep state, and wakes the engine's thread if work is left.
class ProgressLock {
 public:
  // `spin` is true if every rank has its own core.
  ProgressLock(Driver* driver, Observers* observers, ThreadWaker* waker, Watchdog* watchdog, bool spin);

  // Run the progress loop on the engine's thread until stop() is called.
  void run();
  // Run the progress loop on the calling thread, which waits for `op`. Return true if the operation is done. Return
  // false if the caller has reached `deadline` or should sleep instead; the engine's thread then completes the
  // operation.
  bool drive(Operation& op, Deadline deadline);
  // Make run() return, and wake all sleeping threads. Callable from another thread.
  void stop();
  // Call `last` with the lock held. Afterwards, no thread runs the progress loop again.
  template <class Last>
  void retire(Last last) {
    std::lock_guard progress_lock(mutex_);
    last();
    driver_ = nullptr;
  }

 private:
  bool lock_soon(const Operation& op);
  bool doze(Operation& op, Deadline deadline);
  void park();
  void release();
  bool stopping() const { return stop_.load(std::memory_order_seq_cst); }

  std::mutex mutex_;
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
  // Time that a caller running the progress loop spins before it sleeps; guarded by the lock.
  Clock::duration spin_window_;
  std::atomic<bool> stop_{false};
};

// Seconds after which a caller that waits for an operation of a schedule checks whether the operation can still
// complete.
inline constexpr double kNudgeAfter = 2e-3;

}  // namespace hvd
