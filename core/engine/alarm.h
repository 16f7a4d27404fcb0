// How submissions wake an engine's sleeping thread: its bell, rung at once or, by a timer, a moment later.
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
  // From now on it is this bell's. Takes a descriptor of its own and keeps the bell's memory, both until the last caller is gone.
  void attach(const BellRef& bell, std::shared_ptr<Segment> memory);

  // ---- who has published news, with a seq_cst store -------------------------------------------------------------------------
  void ring() const { bell_.ring(); }
  // Whoever sleeps.
  void wake() const { bell_.wake(Mood::idle); }
  // The thread if it sleeps, but not before the caller had a moment to come and drive.
  void ring_soon();
  // Likewise, at once. One of many submissions in a row is enough: the thread that is being woken looks at all there is.
  void ring_now();

  // ---- who drives, or is about to sleep -------------------------------------------------------------------------------------
  void set_mood(Mood mood) { bell_.word()->mood.store(static_cast<uint32_t>(mood), std::memory_order_seq_cst); }
  // Whoever drives needs no ring; looks for what came meanwhile when it is done.
  void ring_no_more();
  // Descriptors that are readable when it rings.
  int bell_fd() const { return bell_.fd(); }
  int timer_fd() const { return timer_; }
  // Woken; looks for news next.
  void drain();

  void close();

 private:
  BellRef bell_;
  std::shared_ptr<Segment> memory_;
  int timer_;
  std::mutex timer_mutex_;  // for changes of the timer and timer_set_ together
  std::atomic<bool> timer_set_{false};
};

}  // namespace hvd
