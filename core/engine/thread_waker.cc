#include "engine/thread_waker.h"

#include <fcntl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace hvd {
namespace {

// Nanoseconds from a submission to the wakeup of the sleeping thread. In this time, a program that submits and then waits starts to run the
// progress loop itself. An earlier wakeup, perhaps on the same core, would only slow it down.
constexpr long kRingAfterNs = 30'000;

void drain_fd(int fd) {
  uint64_t drained;
  while (::read(fd, &drained, sizeof drained) < 0 && errno == EINTR) {
  }
}

}  // namespace

// Without a timer, submissions trigger the wakeup event directly.
ThreadWaker::ThreadWaker() : timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {}

void ThreadWaker::attach(const WakeupEvent& wakeup, std::shared_ptr<Segment> memory) {
  memory_ = std::move(memory);
  wakeup_ = WakeupEvent(::fcntl(wakeup.fd(), F_DUPFD_CLOEXEC, 0), wakeup.word());
}

void ThreadWaker::close() {
  ::close(wakeup_.fd());
  if (timer_ >= 0) ::close(timer_);
}

// Trigger a delayed wakeup, unless one is already pending (timer_set_). The caller must publish its work before the call. A thread that
// clears timer_set_ checks for new work afterwards, so no work is missed.
void ThreadWaker::notify_soon() {
  if (wakeup_.word()->sleep_state.load(std::memory_order_seq_cst) < static_cast<uint32_t>(SleepState::idle)) return;
  if (timer_set_.load(std::memory_order_seq_cst)) return;
  const itimerspec soon{{0, 0}, {0, kRingAfterNs}};
  std::lock_guard lock(timer_mutex_);
  if (timer_set_.load(std::memory_order_seq_cst)) return;
  if (::timerfd_settime(timer_, 0, &soon, nullptr) == 0) {
    timer_set_.store(true, std::memory_order_seq_cst);
  } else {
    wakeup_.notify();
  }
}

void ThreadWaker::notify_now() {
  std::atomic<uint32_t>& sleep_state = wakeup_.word()->sleep_state;
  uint32_t asleep = sleep_state.load(std::memory_order_seq_cst);
  if (asleep < static_cast<uint32_t>(SleepState::idle)) return;
  if (sleep_state.compare_exchange_strong(asleep, static_cast<uint32_t>(SleepState::awake), std::memory_order_seq_cst)) wakeup_.notify();
}

void ThreadWaker::cancel_notify() {
  if (!timer_set_.load(std::memory_order_seq_cst)) return;
  const itimerspec never{};
  std::lock_guard lock(timer_mutex_);
  timer_set_.store(false, std::memory_order_seq_cst);
  ::timerfd_settime(timer_, 0, &never, nullptr);
}

void ThreadWaker::drain() {
  drain_fd(wakeup_.fd());
  std::lock_guard lock(timer_mutex_);
  drain_fd(timer_);
  timer_set_.store(false, std::memory_order_seq_cst);
}

}  // namespace hvd
