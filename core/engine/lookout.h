// Looks after operations that nobody waits for (Engine::submit_unattended): nobody nudges them when a schedule waits for more of the
// program's operations, which may never come, so the engine's thread does, every so many seconds.
#pragma once
#include <atomic>

#include "engine/submissions.h"

namespace hvd {

class Lookout {
 public:
  explicit Lookout(Submissions* submissions);
  ~Lookout() { close(); }
  Lookout(const Lookout&) = delete;

  // There are such operations. Any thread.
  void start();
  // Begins to look when a schedule has begun with such operations.
  void look_out() {
    if (submissions_->must_watch()) start();
  }
  // Readable when it is time to look.
  int fd() const { return timer_; }
  void look();

  void close();

 private:
  Submissions* submissions_;
  int timer_;
  std::atomic<bool> running_{false};
};

// How long before a caller that waits, or who looks for it, gives a schedule up because others may never come: negotiation tells who is
// missing.
inline constexpr double kImpatientAfter = 2;

}  // namespace hvd
