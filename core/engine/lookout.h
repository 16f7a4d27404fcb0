// Watchdog for operations that no caller waits for (Engine::submit_unattended). A schedule may wait for more operations
// that the program never submits. Waiting callers detect this with nudge(); for unattended operations the engine's
// thread checks at intervals.
#pragma once
#include <atomic>

#include "engine/submissions.h"

namespace hvd {

class Lookout {
 public:
  explicit Lookout(Submissions* submissions);
  ~Lookout() { close(); }
  Lookout(const Lookout&) = delete;

  // Start checking. Callable from any thread.
  void start();
  // Start checking if a schedule has begun with unattended operations.
  void look_out() {
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

}  // namespace hvd
