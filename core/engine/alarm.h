// Wakes an engine's sleeping thread for submissions: triggers its wakeup event at once or, by a timer, a moment
// later.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>

#include "transport/bell.h"
#include "transport/segment.h"

namespace hvd {

class Alarm {
 public:
  Alarm();
  ~Alarm() { close(); }
  Alarm(const Alarm&) = delete;
  // Use this wakeup event from now on. Duplicates its descriptor and keeps its memory alive as long as this object
  // exists.
  void attach(const BellRef& bell, std::shared_ptr<Segment> memory);

  // ---- called after publishing work with a seq_cst store ------------------------------------------------------------
  void ring() const { bell_.ring(); }
  // Wake the engine whatever it sleeps for.
  void wake() const { bell_.wake(Mood::idle); }
  // Wake the thread if it sleeps, but give the caller a moment to start driving first.
  void ring_soon();
  // Wake the thread if it sleeps, at once. One wakeup covers many submissions, because the woken thread handles all of
  // them.
  void ring_now();

  // ---- called by a thread that drives or is about to sleep ----------------------------------------------------------
  void set_mood(Mood mood) { bell_.word()->mood.store(static_cast<uint32_t>(mood), std::memory_order_seq_cst); }
  // Cancel a pending delayed wakeup: the calling thread drives and checks for new work when it is done.
  void ring_no_more();
  // Descriptors that become readable on a wakeup.
  int bell_fd() const { return bell_.fd(); }
  int timer_fd() const { return timer_; }
  // Reset the descriptors after a wakeup, before checking for work.
  void drain();

  void close();

 private:
  BellRef bell_;
  std::shared_ptr<Segment> memory_;
  int timer_;
  std::mutex timer_mutex_;  // serializes changes of the timer with timer_set_
  std::atomic<bool> timer_set_{false};
};

}  // namespace hvd
