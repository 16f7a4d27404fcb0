// Waiter: the only way in which the thread that drives an engine waits: for a byte from a link, a peer's counter in
// shared memory, a submission. It spins briefly (cheap when the peer runs on another core), then yields, then sleeps in
// poll(2) on the engine's wakeup event, the relevant sockets and the control plane. So a dead peer, a shutdown or a
// deadline ends every wait.
//
//   Wait wait(waiter, 30, "data from rank 3");
//   while (!arrived()) HVD_RETURN_IF_ERROR(wait.pause());
//
// Wait::pause() returns ok when the caller should check again, and an error when the job was aborted or time is up.
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

// How long to spin and yield before sleeping.
struct SpinPolicy {
  int spins = 2000;   // cpu_relax() rounds before the first yield; 0 if ranks outnumber cores.
  int yields = 20;    // sched_yield() rounds before the first sleep.
};

class Waiter {
 public:
  // `wakeup`: wakeup event of this engine. The wakeup and the links must outlive the waiter.
  Waiter(WakeupEvent wakeup, SpinPolicy policy);

  // Add a link to watch while sleeping, for its wanted() events.
  void watch(Link* link);
  void unwatch_all();

  // Sleep until the wakeup event, the control plane or `deadline`, whichever comes first. Does not run the hook.
  void nap(Deadline deadline);

  // Sleep for a condition without wakeup (transport/polled_wait.h): until the time is over, the wakeup event or the
  // control plane; then run the hook.
  Status rest(Clock::duration longest);
  // Run the hook if the abort flag is set.
  Status glance();

  // Hook called between spins (rarely) and after every sleep; it advances the control plane. An error ends the
  // current wait and every later one. `hook_fds` adds descriptors (fd, events) to watch before each sleep.
  using Hook = std::function<Status()>;
  // `pending` returns true if the hook already has work that no descriptor and no later wakeup would signal.
  using HookFds = std::function<void(std::vector<std::pair<int, short>>&)>;
  using HookPending = std::function<bool()>;
  void set_hook(Hook hook, HookFds fds, HookPending pending = nullptr);

  // Set an abort flag in memory (may be null) that is checked cheaply while spinning.
  void set_abort_flag(const std::atomic<uint32_t>* flag) { abort_flag_ = flag; }

  // Limit a sleep to this many seconds, after which the hook runs even if nothing happened.
  void set_longest_sleep(double seconds) { longest_sleep_ = seconds; }

  void set_wakeup(WakeupEvent wakeup) { wakeup_ = wakeup; }
  WakeupEvent wakeup() const { return wakeup_; }
  const SpinPolicy& policy() const { return policy_; }
  void set_policy(SpinPolicy p) { policy_ = p; }

  // Sleep once: set the sleep_state, check `still` once more (true: keep sleeping), poll until the wakeup event, a descriptor
  // or `deadline`, clear the sleep_state, drain the event, run the hook. Used by Wait and by the engine's idle loop.
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
  double longest_sleep_ = 0;  // seconds; 0: unlimited
  std::vector<::pollfd> polls_;
  std::vector<std::pair<int, short>> extra_;
};

class Wait {
 public:
  // `what` completes the sentence "no progress for 30 s while waiting for ..."; it must outlive the Wait.
  Wait(Waiter& waiter, double timeout_seconds, const char* what) : waiter_(waiter), timeout_(timeout_seconds), what_(what) {}
  Wait(Waiter& waiter, double timeout_seconds, std::function<std::string()> what)
      : waiter_(waiter), timeout_(timeout_seconds), describe_(std::move(what)) {}
  ~Wait();
  Wait(const Wait&) = delete;

  // Spin, yield or sleep once. Return ok if the condition should be checked again.
  Status pause();
  // Declare that checking the condition takes system calls, each about as long as kExpensivePoll rounds of cpu_relax().
  // The wait then spins correspondingly less and sleeps without yielding: a yield would give whole time slices to other
  // threads, while a sleeper is woken as soon as bytes arrive. Once it has slept, it sleeps again almost at once,
  // because the link has proved slower than this side.
  void polling_is_expensive() { expensive_ = true; }
  // Restart spinning and the deadline after progress.
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
