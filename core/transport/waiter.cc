#include "transport/waiter.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ratio>
#include <type_traits>

namespace hvd {
namespace {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Number of spins between two checks of the abort flag.
constexpr int kHookEvery = 256;

}  // namespace

Waiter::Waiter(WakeupEvent wakeup, SpinPolicy policy) : wakeup_(wakeup), policy_(policy) {}

void Waiter::watch(Link* link) { links_.push_back(link); }
void Waiter::unwatch_all() { links_.clear(); }

void Waiter::set_hook(Hook hook, HookFds fds, HookPending pending) {
  hook_ = std::move(hook);
  hook_fds_ = std::move(fds);
  hook_pending_ = std::move(pending);
}

Status Waiter::run_hook() { return hook_ ? hook_() : Status::Ok(); }

Status Waiter::sleep(SleepState sleep_state, Deadline deadline, const std::function<bool()>& still) {
  auto& word = wakeup_.word()->sleep_state;
  word.store(static_cast<uint32_t>(sleep_state), std::memory_order_seq_cst);
  if (still() && !(hook_pending_ && hook_pending_())) {
    polls_.clear();
    polls_.push_back({wakeup_.fd(), POLLIN, 0});
    for (Link* link : links_) {
      if (link->fd() < 0 || !link->wanted()) continue;
      link->before_sleep();
      polls_.push_back({link->fd(), link->wanted(), 0});
    }
    if (hook_fds_) {
      extra_.clear();
      hook_fds_(extra_);
      for (auto [fd, events] : extra_) polls_.push_back({fd, events, 0});
    }
    int longest = deadline.remaining_ms();
    if (longest_sleep_ > 0) longest = std::min(longest, static_cast<int>(longest_sleep_ * 1000));
    // Treat an interrupted poll (EINTR) as a wakeup.
    ::poll(polls_.data(), polls_.size(), longest);
  }
  word.store(static_cast<uint32_t>(SleepState::awake), std::memory_order_seq_cst);
  uint64_t drained;
  while (::read(wakeup_.fd(), &drained, sizeof drained) < 0 && errno == EINTR) {
  }
  return run_hook();
}

void Waiter::nap(Deadline deadline) {
  polls_.clear();
  polls_.push_back({wakeup_.fd(), POLLIN, 0});
  extra_.clear();
  if (hook_fds_) hook_fds_(extra_);
  for (auto [fd, events] : extra_) polls_.push_back({fd, events, 0});
  ::poll(polls_.data(), polls_.size(), deadline.remaining_ms());
  uint64_t drained;
  while (::read(wakeup_.fd(), &drained, sizeof drained) < 0 && errno == EINTR) {
  }
}

Status Waiter::rest(Clock::duration longest) {
  polls_.clear();
  polls_.push_back({wakeup_.fd(), POLLIN, 0});
  extra_.clear();
  if (hook_fds_) hook_fds_(extra_);
  for (auto [fd, events] : extra_) polls_.push_back({fd, events, 0});
  const timespec timeout{0, static_cast<long>(std::min<Clock::duration>(longest, std::chrono::milliseconds(100)).count())};
  static_assert(std::is_same_v<Clock::period, std::nano>);
  ::ppoll(polls_.data(), polls_.size(), &timeout, nullptr);
  uint64_t drained;
  while (::read(wakeup_.fd(), &drained, sizeof drained) < 0 && errno == EINTR) {
  }
  return run_hook();
}

Status Waiter::glance() { return abort_flag_ && abort_flag_->load(std::memory_order_relaxed) != 0 ? run_hook() : Status::Ok(); }

Wait::~Wait() {
  // The condition became true before the announced sleep, so peers need not wake this thread.
  if (armed_) waiter_.wakeup_.word()->sleep_state.store(static_cast<uint32_t>(SleepState::awake), std::memory_order_seq_cst);
}

Status Wait::pause() {
  SpinPolicy policy = waiter_.policy_;
  if (expensive_) policy = {slept_ ? 0 : policy.spins / kExpensivePoll, 0};
  if (!started_) {
    started_ = true;
    begin_ = Clock::now();
    // Do not sleep in the first round after progress: the links must first report again which events they wait for.
    if (armed_) {
      armed_ = false;
      waiter_.wakeup_.word()->sleep_state.store(static_cast<uint32_t>(SleepState::awake), std::memory_order_seq_cst);
    }
    for (Link* link : waiter_.links_) link->clear_wanted();
    rounds_ = 0;
  }
  const int round = rounds_++;
  if (round % kHookEvery == kHookEvery - 1 && waiter_.abort_flag_ && waiter_.abort_flag_->load(std::memory_order_relaxed) != 0) {
    HVD_RETURN_IF_ERROR(waiter_.run_hook());
  }
  if (round < policy.spins) {
    cpu_relax();
    return {};
  }
  if (round < policy.spins + policy.yields) {
    ::sched_yield();
    return {};
  }
  // Only the caller can check the condition, so a sleep takes two rounds. This round announces the sleep and lets the
  // caller check again. The next round sleeps if the condition still does not hold.
  auto& word = waiter_.wakeup_.word()->sleep_state;
  if (!armed_) {
    armed_ = true;
    word.store(static_cast<uint32_t>(SleepState::waiting), std::memory_order_seq_cst);
    return {};
  }
  armed_ = false;
  const Deadline deadline = Deadline::at(begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_)));
  HVD_RETURN_IF_ERROR(waiter_.sleep(SleepState::waiting, deadline, [] { return true; }));
  if (deadline.passed()) {
    const std::string what = describe_ ? describe_() : std::string(what_);
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%g", timeout_);
    return Status(Code::timeout, "no progress for " + std::string(seconds) + " s while waiting for " + what);
  }
  slept_ = true;
  // After a sleep, do not spin again. Yield a few times, then sleep.
  rounds_ = policy.spins;
  return {};
}

}  // namespace hvd
