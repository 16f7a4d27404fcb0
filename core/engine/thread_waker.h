// Waker of an engine's sleeping thread. It triggers the thread's wakeup event, either immediately or, for submissions, after a short delay.
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
  // Use this wakeup event from now on. Its descriptor is duplicated, and its memory is kept alive.
  void attach(const WakeupEvent& wakeup, std::shared_ptr<Segment> memory);

  // ---- Functions called after work was published with a seq_cst store -----------------------------------------------
  void notify() const { wakeup_.notify(); }
  // Wake the engine from any sleep.
  void wake() const { wakeup_.wake(SleepState::idle); }
  // Wake the sleeping thread after a short delay, in which the caller can start to run the progress loop itself.
  void notify_soon();
  // Wake the thread immediately if it is asleep. One wakeup covers many submissions, because the woken thread handles
  // all of them.
  void notify_now();

  // ---- Functions called by a thread that runs the progress loop or is about to sleep --------------------------------
  void set_sleep_state(SleepState sleep_state) {
    wakeup_.word()->sleep_state.store(static_cast<uint32_t>(sleep_state), std::memory_order_seq_cst);
  }
  // Return the sleep state. Only the thread with the progress lock changes it, and notify_now(), which wakes the engine's thread.
  SleepState sleep_state() const { return static_cast<SleepState>(wakeup_.word()->sleep_state.load(std::memory_order_seq_cst)); }
  // Cancel a delayed wakeup. The calling thread runs the progress loop, so it finds new work itself.
  void cancel_notify();
  // Return the file descriptors that become readable when the thread is woken.
  int wakeup_fd() const { return wakeup_.fd(); }
  int timer_fd() const { return timer_; }
  // Reset the descriptors after a wakeup, before checking for work.
  void drain();

  void close();

 private:
  WakeupEvent wakeup_;
  std::shared_ptr<Segment> memory_;
  int timer_;
  // Mutex that keeps the timer and timer_set_ consistent.
  std::mutex timer_mutex_;
  std::atomic<bool> timer_set_{false};
};

}  // namespace hvd
