// The baton: who drives the engine, its thread, or a caller that waits for an operation and would otherwise only wait for the thread to be
// woken (worth several microseconds).
//
//   the thread   run(): turns while something moves -> park(): asleep without the baton, until the bell, a message or the time to look
//   a caller     drive(): turns until its operation is done; nothing moves for a while -> leaves the rest to the thread, and sleeps
//                on its operation; while only a peer's message is missing it may doze() with the baton
//
// Whoever lets go of the baton leaves the mood that fits behind, and wakes the thread if there is something left to do.
#pragma once
#include <atomic>
#include <mutex>

#include "engine/alarm.h"
#include "engine/driver.h"
#include "engine/lookout.h"

namespace hvd {

class Baton {
 public:
  // `spin`: there is a core for each rank.
  Baton(Driver* driver, Observers* observers, Alarm* alarm, Lookout* lookout, bool spin);

  // The thread, until stop().
  void run();
  // A caller. True when the operation is done; else it is the thread's, now or at `deadline`.
  bool drive(Operation& op, Deadline deadline);
  // Another thread: run() ends, nobody sleeps any longer.
  void stop();
  // Nobody drives any more; `last` is called with the baton.
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
  Driver* driver_;  // touched only with the baton
  Observers* observers_;
  Alarm* alarm_;
  Lookout* lookout_;
  const bool spin_;
  bool parked_ = false;          // with the baton: the thread sleeps
  double rest_ = 0;              // and for how many seconds at most
  Clock::duration spin_window_;  // with the baton: how long a driving caller spins before it sleeps
  std::atomic<bool> stop_{false};
};

// How long a caller waits for an operation of a schedule before it asks whether that can ever be complete.
inline constexpr double kNudgeAfter = 2e-3;

}  // namespace hvd
