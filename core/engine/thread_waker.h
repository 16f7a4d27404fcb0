// Wakes an engine's sleeping thread for submissions. It triggers the thread's wakeup event at once or, by a timer, a
// moment later.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>

#include "transport/segment.h"
#include "transport/wakeup_event.h"

namespace hvd {

class ThreadWaker {
 public:
  ThreadWaker();
  ~ThreadWaker() { close(); }
  ThreadWaker(const ThreadWaker&) = delete;
  // Use this wakeup event from now on. The descriptor is duplicated, and the memory of the event is kept alive as long
  // as this object exists.
  void attach(const WakeupEvent& wakeup, std::shared_ptr<Segment> memory);

  // ---- Functions called after work was published with a seq_cst store -----------------------------------------------
  void notify() const { wakeup_.notify(); }
  // Wake the engine, whatever it sleeps for.
  void wake() const { wakeup_.wake(SleepState::idle); }
  // Wake the thread if it sleeps, but first give the caller a moment to start driving.
  void notify_soon();
  // Wake the thread at once if it sleeps. One wakeup covers many submissions, because the woken thread handles all of
  // them.
  void notify_now();

  // ---- Functions called by a thread that drives or is about to sleep ------------------------------------------------
  void set_sleep_state(SleepState sleep_state) {
    wakeup_.word()->sleep_state.store(static_cast<uint32_t>(sleep_state), std::memory_order_seq_cst);
  }
  // Only the thread that holds the progress lock changes the state, apart from notify_now(), which wakes the thread.
  SleepState sleep_state() const { return static_cast<SleepState>(wakeup_.word()->sleep_state.load(std::memory_order_seq_cst)); }
  // Cancel a pending delayed wakeup, because the calling thread drives and checks for new work when it is done.
  void cancel_notify();
  // Append the descriptors that become readable on a wakeup.
  int wakeup_fd() const { return wakeup_.fd(); }
  int timer_fd() const { return timer_; }
  // Reset the descriptors after a wakeup, before checking for work.
  void drain();

  void close();

 private:
  WakeupEvent wakeup_;
  std::shared_ptr<Segment> memory_;
  int timer_;
  std::mutex timer_mutex_;  // keeps the timer and timer_set_ consistent with each other
  std::atomic<bool> timer_set_{false};
};

}  // namespace hvd
