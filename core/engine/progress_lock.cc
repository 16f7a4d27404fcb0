#include "engine/progress_lock.h"

#include <poll.h>
#include <sched.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/float_mode.h"

namespace hvd {

namespace {

// Time without progress after which a caller leaves the progress loop to the engine's thread and sleeps.
constexpr auto kDriveSpin = std::chrono::microseconds(100);
constexpr int kDriveYields = 20;
// Number of turns without progress after which the clock is first read. Most waits are shorter.
constexpr int kUntimedTurns = 16;
// A caller that stops running the progress loop wakes the engine's thread if the next check is due within this many seconds. The thread
// then sleeps only until the check.
constexpr double kLongRest = 60;

}  // namespace

ProgressLock::ProgressLock(Driver* driver, Observers* observers, ThreadWaker* waker, Watchdog* watchdog, bool spin)
    : driver_(driver), observers_(observers), waker_(waker), watchdog_(watchdog), spin_(spin), spin_window_(kDriveSpin) {}

void ProgressLock::run() {
  // Set the default floating-point mode. Otherwise, this thread would have its creator's mode, which the program might have changed.
  const DefaultFloatMode floats;
  lock_for_thread();
  while (!stopping()) {
    const bool moved = driver_->step(false);
    watchdog_->start_if_needed();
    if (!moved) park();
  }
  mutex_.unlock();
}

void ProgressLock::stop() {
  stop_.store(true, std::memory_order_seq_cst);
  waker_->notify();
}

void ProgressLock::lock_for_thread() {
  thread_waits_.store(true, std::memory_order_relaxed);
  mutex_.lock();
  thread_waits_.store(false, std::memory_order_relaxed);
}

bool ProgressLock::drive(Operation& op, Deadline deadline) {
  // Let the engine's thread take the lock first if it waits. A program that calls one operation after another would
  // otherwise take the lock again before the thread, which unlocking wakes, runs, and each operation would wake it for nothing.
  if (thread_waits_.load(std::memory_order_relaxed)) ::sched_yield();
  if (!mutex_.try_lock() && !lock_soon(op)) return op.done();
  // While this caller runs the progress loop, peers must not wake the engine's thread. Write the sleep state only if it changes, because
  // peers read it several times per operation.
  if (driver_ && waker_->sleep_state() == SleepState::waiting) waker_->set_sleep_state(SleepState::awake);
  waker_->cancel_notify();
  int idle_turns = 0;
  Clock::time_point idle_since{}, stay{};
  // Set the floating-point mode, because the caller's thread might use another one.
  const DefaultFloatMode floats;
  while (driver_ && !op.done()) {
    const bool moved = driver_->step(true);
    watchdog_->start_if_needed();
    if (moved) {
      idle_turns = 0;
      idle_since = {};
      continue;
    }
    if (++idle_turns < kUntimedTurns && spin_) continue;
    const auto now = Clock::now();
    if (idle_since == Clock::time_point{}) idle_since = now;
    if (stay == Clock::time_point{}) stay = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kNudgeAfter));
    const bool peers = driver_->awaits_peers();
    if (spin_ ? now - idle_since > (peers ? spin_window_ : kDriveSpin)
              : idle_turns > kDriveYields || (peers && spin_window_ < kDriveSpin)) {
      if (!peers || !doze(op, Deadline::at(std::min(deadline.when(), stay)))) break;
      // Spinning pays off only for short waits, so spin longer only if the last messages arrived quickly.
      const bool soon = Clock::now() - idle_since <= kDriveSpin;
      spin_window_ = soon ? kDriveSpin : spin_window_ / 2;
      continue;
    }
    if (!spin_) ::sched_yield();
  }
  release();
  return op.done();
}

// Try for a short time to get the lock, which the engine's thread might hold only to handle one message. This is cheaper than sleeping.
bool ProgressLock::lock_soon(const Operation& op) {
  const auto begin = Clock::now();
  do {
    if (op.done() || !spin_ || Clock::now() - begin > kDriveSpin) return false;
    // Yield, because the engine's thread might need this core to make progress.
    ::sched_yield();
  } while (!mutex_.try_lock());
  return true;
}

// Sleep with the lock held until a peer's message or the wakeup event arrives. Return false if the engine's thread
// should take over.
bool ProgressLock::doze(Operation& op, Deadline deadline) {
  const auto left = deadline.when() - Clock::now();
  if (left <= Clock::duration::zero() || stopping()) return false;
  std::vector<std::pair<int, short>> fds;
  driver_->poll_fds(fds);
  std::vector<pollfd> polls{{waker_->wakeup_fd(), POLLIN, 0}, {waker_->timer_fd(), POLLIN, 0}};
  for (auto [fd, events] : fds) polls.push_back({fd, events, 0});
  const timespec timeout{
      0, static_cast<long>(std::chrono::nanoseconds(std::min<Clock::duration>(left, std::chrono::milliseconds(100))).count())};
  waker_->set_sleep_state(SleepState::waiting);
  if (!op.done() && !stopping() && !driver_->work_waiting()) {
    observers_->notify(&Observer::asleep, static_cast<double>(timeout.tv_nsec) * 1e-9);
    ::ppoll(polls.data(), polls.size(), &timeout, nullptr);
    observers_->notify(&Observer::awake);
  }
  waker_->set_sleep_state(SleepState::awake);
  if (!polls[0].revents && !polls[1].revents) return true;
  // Reset the wakeup event. The wakeup can have been meant for the engine's thread, which sleeps on the same event; release() then triggers
  // the event again.
  waker_->drain();
  return true;
}

// Release the lock. Update the sleep state of the engine's thread, and wake the thread if there is work for which no peer will wake it.
void ProgressLock::release() {
  const bool ring = driver_ && parked_;
  bool work = false;
  if (ring) {
    if (const SleepState resting = driver_->resting_sleep_state(); waker_->sleep_state() != resting) waker_->set_sleep_state(resting);
    work = driver_->work_waiting() || driver_->resting_seconds() < std::min(kLongRest, rest_) || stopping() || driver_->unsent() ||
           driver_->awaits_peers();
  }
  mutex_.unlock();
  if (work) waker_->notify();
}

// Sleep without the lock until the wakeup event, a control message, or the next check.
void ProgressLock::park() {
  std::vector<std::pair<int, short>> fds;
  driver_->poll_fds(fds);
  std::vector<pollfd> polls{{waker_->wakeup_fd(), POLLIN, 0}, {waker_->timer_fd(), POLLIN, 0}, {watchdog_->fd(), POLLIN, 0}};
  for (auto [fd, events] : fds) polls.push_back({fd, events, 0});
  const double seconds = driver_->resting_seconds();
  timespec timeout{static_cast<time_t>(seconds), static_cast<long>((seconds - static_cast<time_t>(seconds)) * 1e9)};
  waker_->set_sleep_state(driver_->resting_sleep_state());
  if (stopping() || driver_->work_waiting()) {
    waker_->set_sleep_state(SleepState::awake);
    return;
  }
  observers_->notify(&Observer::asleep, seconds);
  parked_ = true;
  rest_ = seconds;
  mutex_.unlock();
  ::ppoll(polls.data(), polls.size(), &timeout, nullptr);
  lock_for_thread();
  parked_ = false;
  observers_->notify(&Observer::awake);
  waker_->set_sleep_state(SleepState::awake);
  waker_->drain();
  if (polls[2].revents) watchdog_->look();
}

namespace {

// Seconds between checks of operations for which no caller waits. If a program computes for longer than this between two operations of one
// bucket, its rank leaves the schedule.
constexpr double kWatch = 1;

}  // namespace

Watchdog::Watchdog(Submissions* submissions)
    : submissions_(submissions), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {}

void Watchdog::close() {
  if (timer_ >= 0) ::close(timer_);
}

void Watchdog::start() {
  if (running_.load(std::memory_order_seq_cst) || running_.exchange(true, std::memory_order_seq_cst)) return;
  const itimerspec later{{0, 0}, {static_cast<time_t>(kWatch), 0}};
  ::timerfd_settime(timer_, 0, &later, nullptr);
}

void Watchdog::look() {
  uint64_t drained;
  // The timer has not expired yet.
  if (::read(timer_, &drained, sizeof drained) < 0) return;
  running_.store(false, std::memory_order_seq_cst);
  bool waiting = false;
  // An operation that cannot complete in the schedule makes this rank leave the schedule in the next turn of the progress loop.
  (void)submissions_->nudge_unattended(kWatch, kImpatientAfter, &waiting);
  // Check again while a schedule or an incomplete group contains operations for which no caller waits.
  if (waiting) start();
}

}  // namespace hvd
