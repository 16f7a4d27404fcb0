// Waiter: how the thread that drives an engine waits for anything at all: a byte from a link, a peer's counter in shared memory,
// a submission. First it spins a little (cheap when the peer runs on another core), then it yields, then it sleeps in poll(2) on
// the engine's bell, the sockets that matter and the control plane. Nothing in the core waits in another way, so a dead peer,
// a shutdown or a deadline ends every wait.
//
//   Wait wait(waiter, Deadline::after(30), "data from rank 3");
//   while (!arrived()) HVD_RETURN_IF_ERROR(wait.pause());
//
// Wait::pause() returns ok when the caller should look again, an error when the job has been aborted or time is up.
#pragma once
#include <poll.h>

#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "transport/bell.h"
#include "transport/link.h"

namespace hvd {

struct SpinPolicy {
  int spins = 2000;   // rounds of cpu_relax before the first yield; 0 when ranks outnumber cores
  int yields = 20;    // sched_yield rounds after that
};

class Waiter {
 public:
  // `bell`: the engine's own. The bell and the links outlive the waiter.
  Waiter(BellRef bell, SpinPolicy policy);

  // Links to watch while sleeping, as far as they want something (Link::wanted).
  void watch(Link* link);
  void unwatch_all();

  // Sleeps until the bell, the control plane or `deadline`, whichever comes first; does not run the hook.
  void nap(Deadline deadline);

  // For what nobody rings for (transport/polled_wait.h): sleeps so long, or until the bell or the control plane, then runs the hook.
  Status rest(Clock::duration longest);
  // Runs the hook if the abort flag is up.
  Status glance();

  // Called between spins (rarely) and after every sleep: pumps the control plane. An error ends the wait in progress and every
  // later one. Extra descriptors that the hook is interested in are added by `hook_fds` (fd, events) before each sleep.
  using Hook = std::function<Status()>;
  // `pending` says whether the hook has something to do already, which no descriptor and no later ring of the bell would tell.
  using HookFds = std::function<void(std::vector<std::pair<int, short>>&)>;
  using HookPending = std::function<bool()>;
  void set_hook(Hook hook, HookFds fds, HookPending pending = nullptr);

  // Cheap check used while spinning: an abort flag in memory (may be null).
  void set_abort_flag(const std::atomic<uint32_t>* flag) { abort_flag_ = flag; }

  // Sleep at most so many seconds before the hook has its turn, also when nothing happens.
  void set_longest_sleep(double seconds) { longest_sleep_ = seconds; }

  void set_bell(BellRef bell) { bell_ = bell; }
  BellRef bell() const { return bell_; }
  const SpinPolicy& policy() const { return policy_; }
  void set_policy(SpinPolicy p) { policy_ = p; }

  // The sleep itself: sets the bell's mood, asks `still` once more (true: keep sleeping), polls until the bell, a descriptor or
  // `deadline`, clears the mood, drains the bell, runs the hook. Used by Wait and by the engine's idle loop.
  Status sleep(Mood mood, Deadline deadline, const std::function<bool()>& still);

 private:
  friend class Wait;
  Status run_hook();

  BellRef bell_;
  SpinPolicy policy_;
  std::vector<Link*> links_;
  Hook hook_;
  HookFds hook_fds_;
  HookPending hook_pending_;
  const std::atomic<uint32_t>* abort_flag_ = nullptr;
  double longest_sleep_ = 0;  // 0: any
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

  Status pause();
  // A look at the condition takes system calls, which the kernel answers in about the time of kExpensivePoll rounds of cpu_relax: so
  // there are as many fewer, and then sleep comes at once. Yielding instead would hand whole slices to whoever else wants the
  // core, while bytes that arrive wake a sleeper before its turn. Who has had to sleep once will have to again (the link is slower
  // than we are), and does so without looking around for long.
  void polling_is_expensive() { expensive_ = true; }
  // Something moved: spinning and the deadline start anew.
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
