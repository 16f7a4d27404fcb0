#include "engine/alarm.h"

#include <fcntl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace hvd {
namespace {

// Delay in ns after a submission before the sleeping thread is woken. A program that keeps submitting and then waits
// drives the engine itself by then; waking the thread, perhaps on the same core, would only slow it down.
constexpr long kRingAfterNs = 30'000;

void drain_fd(int fd) {
  uint64_t drained;
  while (::read(fd, &drained, sizeof drained) < 0 && errno == EINTR) {
  }
}

}  // namespace

// Without a timer, submissions trigger the wakeup event at once.
Alarm::Alarm() : timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {}

void Alarm::attach(const BellRef& bell, std::shared_ptr<Segment> memory) {
  memory_ = std::move(memory);
  bell_ = BellRef(::fcntl(bell.fd(), F_DUPFD_CLOEXEC, 0), bell.word());
}

void Alarm::close() {
  ::close(bell_.fd());
  if (timer_ >= 0) ::close(timer_);
}

// As with the wakeup event itself, the caller publishes before it reads the mood and timer_set_; a thread that clears
// timer_set_ checks for new work afterwards.
void Alarm::ring_soon() {
  if (bell_.word()->mood.load(std::memory_order_seq_cst) < static_cast<uint32_t>(Mood::idle)) return;
  if (timer_set_.load(std::memory_order_seq_cst)) return;
  const itimerspec soon{{0, 0}, {0, kRingAfterNs}};
  std::lock_guard lock(timer_mutex_);
  if (timer_set_.load(std::memory_order_seq_cst)) return;
  if (::timerfd_settime(timer_, 0, &soon, nullptr) == 0) {
    timer_set_.store(true, std::memory_order_seq_cst);
  } else {
    bell_.ring();
  }
}

void Alarm::ring_now() {
  std::atomic<uint32_t>& mood = bell_.word()->mood;
  uint32_t asleep = mood.load(std::memory_order_seq_cst);
  if (asleep < static_cast<uint32_t>(Mood::idle)) return;
  if (mood.compare_exchange_strong(asleep, static_cast<uint32_t>(Mood::awake), std::memory_order_seq_cst)) bell_.ring();
}

void Alarm::ring_no_more() {
  if (!timer_set_.load(std::memory_order_seq_cst)) return;
  const itimerspec never{};
  std::lock_guard lock(timer_mutex_);
  timer_set_.store(false, std::memory_order_seq_cst);
  ::timerfd_settime(timer_, 0, &never, nullptr);
}

void Alarm::drain() {
  drain_fd(bell_.fd());
  std::lock_guard lock(timer_mutex_);
  drain_fd(timer_);
  timer_set_.store(false, std::memory_order_seq_cst);
}

}  // namespace hvd
