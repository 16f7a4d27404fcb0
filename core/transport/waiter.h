// Waiter: the only place where the thread that runs the progress loop waits. It waits for a byte from a link, a peer's counter in shared
// memory, or a submission. It spins briefly (cheap when the peer runs on another core), then yields, then sleeps in poll(2) on the engine's
// wakeup event, the relevant sockets and the control plane. A dead peer, a shutdown or a deadline therefore ends every wait.
//
// Example:
//   Wait wait(waiter, 30, "data from rank 3");
//   while (!arrived()) HVD_RETURN_IF_ERROR(wait.pause());
//
// Wait::pause() returns ok when the caller should check again. It returns an error when the job was aborted or the
// timeout has passed.
#pragma once
#include <poll.h>

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "transport/link.h"
#include "transport/wakeup_event.h"

namespace hvd {

// Number of rounds of spinning and yielding before a sleep.
struct SpinPolicy {
  // Number of cpu_relax() rounds before the first yield; 0 if there are more ranks than cores.
  int spins = 2000;
  // Number of sched_yield() rounds before the first sleep.
  int yields = 20;
};

class Waiter {
 public:
  // `wakeup` is the wakeup event of this engine. `wakeup` and all watched links must outlive the waiter.
  Waiter(WakeupEvent wakeup, SpinPolicy policy);

  // From now on, sleeps also end at the events that `link` waits for (Link::wanted()).
  void watch(Link* link);
  void unwatch_all();

  // Sleep until the wakeup event, an event of the control plane, or `deadline`, without running the hook (set_hook()).
  void nap(Deadline deadline);

  // Sleep in a wait for a condition that triggers no wakeup (transport/polled_wait.h): at most `longest`, or until the wakeup event or an
  // event of the control plane. Then run the hook (set_hook()), which advances the control plane.
  Status rest(Clock::duration longest);
  // If the abort flag is set, run the hook and return its error.
  Status glance();

  // Function that advances the control plane, called after every sleep and occasionally between spins. Its error ends the current wait and
  // every later one. `fds` adds descriptors, with their poll(2) events, to those watched in each sleep.
  using Hook = std::function<Status()>;
  // `pending` returns true if the hook has work to do now, for which no descriptor becomes readable and no wakeup follows.
  using HookFds = std::function<void(std::vector<std::pair<int, short>>&)>;
  using HookPending = std::function<bool()>;
  void set_hook(Hook hook, HookFds fds, HookPending pending = nullptr);

  // Set the abort flag in memory, which the waiter checks while it spins. Null removes it.
  void set_abort_flag(const std::atomic<uint32_t>* flag) { abort_flag_ = flag; }

  // Limit each sleep to this many seconds, so that the hook runs even if nothing happens.
  void set_longest_sleep(double seconds) { longest_sleep_ = seconds; }

  void set_wakeup(WakeupEvent wakeup) { wakeup_ = wakeup; }
  WakeupEvent wakeup() const { return wakeup_; }
  const SpinPolicy& policy() const { return policy_; }
  void set_policy(SpinPolicy p) { policy_ = p; }

  // Sleep once. First publish `sleep_state`, so that peers wake this engine, and call `still`. If it returns true, because the caller must
  // still wait, poll until the wakeup event, an event on a watched descriptor, or `deadline`. Finally, set the state to awake, drain the
  // wakeup event, and run the hook (set_hook()). Used by Wait and by the engine's idle loop.
  Status sleep(SleepState sleep_state, Deadline deadline, const std::function<bool()>& still);

 private:
  friend class Wait;
  Status run_hook();

  WakeupEvent wakeup_;
  SpinPolicy policy_;
  std::vector<Link*> links_;
  Hook hook_;
  HookFds hook_fds_;
  HookPending hook_pending_;
  const std::atomic<uint32_t>* abort_flag_ = nullptr;
  // Maximum length of a sleep in seconds; 0 means no limit.
  double longest_sleep_ = 0;
  std::vector<::pollfd> polls_;
  std::vector<std::pair<int, short>> extra_;
};

class Wait {
 public:
  // `what` completes the sentence "no progress for 30 s while waiting for ...". It must outlive the Wait.
  Wait(Waiter& waiter, double timeout_seconds, const char* what) : waiter_(waiter), timeout_(timeout_seconds), what_(what) {}
  Wait(Waiter& waiter, double timeout_seconds, std::function<std::string()> what)
      : waiter_(waiter), timeout_(timeout_seconds), describe_(std::move(what)) {}
  ~Wait();
  Wait(const Wait&) = delete;

  // Spin, yield or sleep once. Return ok if the condition should be checked again.
  Status pause();
  // Declare that checking the condition takes system calls, each about as long as kExpensivePoll rounds of cpu_relax(). The wait then spins
  // less, and sleeps without yielding: a yield can give a whole time slice to other threads, while a sleeper is woken as soon as bytes
  // arrive. After its first sleep, it soon sleeps again, because the link has proved slower than this side.
  void polling_is_expensive() { expensive_ = true; }
  // Report progress. This restarts the spinning and the timeout.
  void progress() {
    rounds_ = 0;
    started_ = false;
  }

 private:
  static constexpr int kExpensivePoll = 32;

  Waiter& waiter_;
  double timeout_;
  const char* what_ = "";
  std::function<std::string()> describe_;
  int rounds_ = 0;
  bool started_ = false;
  bool armed_ = false;
  bool expensive_ = false;
  bool slept_ = false;
  Clock::time_point begin_{};
};

}  // namespace hvd
