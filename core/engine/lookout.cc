#include "engine/lookout.h"

#include <sys/timerfd.h>
#include <unistd.h>

namespace hvd {
namespace {

// Seconds between two checks. A program that computes for longer between two operations of one bucket pays with a
// negotiation.
constexpr double kWatch = 1;

}  // namespace

Lookout::Lookout(Submissions* submissions)
    : submissions_(submissions), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {}

void Lookout::close() {
  if (timer_ >= 0) ::close(timer_);
}

void Lookout::start() {
  if (running_.load(std::memory_order_seq_cst) || running_.exchange(true, std::memory_order_seq_cst)) return;
  const itimerspec later{{0, 0}, {static_cast<time_t>(kWatch), 0}};
  ::timerfd_settime(timer_, 0, &later, nullptr);
}

void Lookout::look() {
  uint64_t drained;
  if (::read(timer_, &drained, sizeof drained) < 0) return;  // the timer has not expired yet
  running_.store(false, std::memory_order_seq_cst);
  bool waiting = false;
  // The driver's next turn sees that this rank leaves the schedule.
  (void)submissions_->nudge_unattended(kWatch, kImpatientAfter, &waiting);
  if (waiting) start();  // others may become due
}

}  // namespace hvd
