#include "engine/engine.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/float_mode.h"

namespace hvd {
namespace {

// How long a caller drives the engine without anything moving before it leaves that to the thread and sleeps.
constexpr auto kDriveSpin = std::chrono::microseconds(100);
constexpr int kDriveYields = 20;
// How long the sleeping thread is left asleep after a submission. A program that goes on submitting and then waits drives the engine
// itself by then, and waking the thread, perhaps on the same core, would only be in its way.
constexpr long kRingAfterNs = 30'000;
// How long a caller waits for an operation of a schedule before it asks whether that can ever be complete.
constexpr double kNudgeAfter = 2e-3;
// Rests shorter than this have a reason; the thread has to learn of it when a caller leaves it behind.
constexpr double kLongRest = 60;
// How long before it gives the schedule up because others may never come: negotiation tells who is missing.
constexpr double kImpatientAfter = 2;
// Nobody waits for the operations of some callers (Engine::submit_unattended), so nobody nudges: the thread looks after them every so
// many seconds. A program that computes for longer than this between two operations of one bucket pays with a negotiation.
constexpr double kWatch = 1;

int64_t nanoseconds() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

// Seconds since a caller first asked for `op`, in this call or another: most wait in slices, to look for signals in between.
double asked_for(Operation& op) {
  int64_t first = 0;
  const int64_t now = nanoseconds();
  if (op.first_poll.compare_exchange_strong(first, now)) first = now;
  return static_cast<double>(now - first) * 1e-9;
}

}  // namespace

Engine::Engine(EngineOptions options)
    : submissions_(options.rank, options.size), spin_(options.settings.spins > 0), cpu_(options.settings.cpu), spin_window_(kDriveSpin) {
  talk_through_memory(options);
  fds_ = descriptors(options);
  timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);  // without one, submissions ring at once
  watch_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  observers_.add(counters_);
  driver_ = std::make_unique<Driver>(options, &submissions_, &observers_);
  segment_ = driver_->world().segment_pointer();
  arena_ = std::make_shared<Arena>(segment_, driver_->world().local_rank());
  bell_ = BellRef(::fcntl(driver_->world().bell().fd(), F_DUPFD_CLOEXEC, 0), driver_->world().bell().word());
  // Signals are the program's business, not this thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Engine::~Engine() {
  shutdown("");
  ::close(bell_.fd());
  if (timer_ >= 0) ::close(timer_);
  if (watch_ >= 0) ::close(watch_);
}

Status Engine::submit(Request request, const std::byte* in, std::byte* out, OperationPtr* result, float* residual) {
  return accept(std::move(request), in, out, result, residual, true);
}

Status Engine::submit_blocking(Request request, const std::byte* in, std::byte* out, OperationPtr* result, float* residual) {
  return accept(std::move(request), in, out, result, residual, false);
}

Status Engine::accept(Request request, const std::byte* in, std::byte* out, OperationPtr* result, float* residual, bool ring) {
  auto op = std::make_shared<Operation>();
  op->request = std::move(request);
  op->in = in;
  op->out = out;
  op->residual = residual;
  bool wake = false;
  HVD_RETURN_IF_ERROR(enqueue(op, &wake));
  if (wake && ring) ring_soon();
  *result = std::move(op);
  return {};
}

Status Engine::enqueue(const OperationPtr& op, bool* wake) {
  observers_.tell_submission(&Observer::submitted, *op);
  Status status = submissions_.submit(op, wake);
  if (!status.ok()) observers_.tell_submission(&Observer::refused, *op, status);
  return status;
}

Status Engine::submit_unattended(Request request, const std::byte* in, std::byte* out, void (*on_done)(Operation&, void*), void* context) {
  auto op = std::make_shared<Operation>();
  op->request = std::move(request);
  op->in = in;
  op->out = out;
  op->on_done = on_done;
  op->context = context;
  bool wake = false;
  HVD_RETURN_IF_ERROR(enqueue(op, &wake));
  watch();
  if (wake) ring_now();  // nobody will come and drive
  return {};
}

Status Engine::submit_again(OperationPtr* op, const std::byte* in, std::byte* out, bool blocking) {
  if (abandoned_) return Status(Code::shutdown, "the engine belongs to the parent process; a forked child cannot use it");
  if (!(*op)->done()) {
    const Request& q = (*op)->request;
    return Status(Code::invalid_argument,
                  std::string(name_of(q.kind)) + ": the operation is still in flight; wait for it before you submit it again");
  }
  if (op->use_count() == 1) {
    (*op)->reuse();
  } else {
    // Somebody still looks at the result, if only the driver that is about to let go of it.
    auto fresh = std::make_shared<Operation>();
    fresh->request = (*op)->request;
    if (fresh->request.unnamed) fresh->request.name.clear();
    fresh->schedule = (*op)->schedule;
    fresh->entry = (*op)->entry;
    *op = std::move(fresh);
  }
  (*op)->in = in;
  (*op)->out = out;
  bool wake = false;
  observers_.tell_submission(&Observer::submitted, **op);
  Status status = submissions_.submit_again(*op, &wake);
  if (!status.ok()) {
    observers_.tell_submission(&Observer::refused, **op, status);
    (*op)->complete(status);  // it was made pending above, and nobody else would
  }
  if (wake && !blocking) ring_soon();
  return status;
}

// Wakes the thread if it sleeps, but not before the caller had a moment to come and drive. As with the bell itself, the caller has
// published its news before it looks at the mood and at timer_set_, and who clears that looks for news afterwards.
void Engine::ring_soon() {
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

// One of many submissions in a row is enough: the thread that is being woken looks at all there is.
void Engine::ring_now() {
  std::atomic<uint32_t>& mood = bell_.word()->mood;
  uint32_t asleep = mood.load(std::memory_order_seq_cst);
  if (asleep < static_cast<uint32_t>(Mood::idle)) return;
  if (mood.compare_exchange_strong(asleep, static_cast<uint32_t>(Mood::awake), std::memory_order_seq_cst)) bell_.ring();
}

// Whoever drives needs no ring; release_baton() looks for what came meanwhile.
void Engine::ring_no_more() {
  if (!timer_set_.load(std::memory_order_seq_cst)) return;
  const itimerspec never{};
  std::lock_guard lock(timer_mutex_);
  timer_set_.store(false, std::memory_order_seq_cst);
  ::timerfd_settime(timer_, 0, &never, nullptr);
}

// ---- waiting --------------------------------------------------------------------------------------------------------------
bool Engine::wait(Operation& op, Deadline deadline) {
  // A forked child must not drive its parent's engine, nor take a lock that may have been held when it was forked.
  if (abandoned_) return op.sleep_until(deadline);
  submissions_.fence();
  if (op.done()) return true;
  op.awaited.store(true);
  if (drive(op, deadline)) return true;
  bell_.wake(Mood::idle);
  if (op.sleep_until(std::min(deadline, Deadline::after(kNudgeAfter), [](auto& a, auto& b) { return a.when() < b.when(); }))) return true;
  while (!op.done()) {
    if (submissions_.nudge(op, asked_for(op) > kImpatientAfter)) bell_.ring();
    if (deadline.passed()) return false;
    // Nudged again now and then: the next step's schedule may be the one that cannot go on.
    const Deadline slice = Deadline::after(0.1);
    op.sleep_until(slice.when() < deadline.when() ? slice : deadline);
  }
  return true;
}

bool Engine::drive(Operation& op, Deadline deadline) {
  auto idle_since = Clock::now();
  const Deadline stay = Deadline::at(
      std::min(deadline.when(), idle_since + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kNudgeAfter))));
  // The thread may hold the baton for a moment, woken by a peer's message; waiting for that beats going to sleep.
  while (!baton_.try_lock()) {
    if (op.done()) return true;
    if (!spin_ || Clock::now() - idle_since > kDriveSpin) return false;
    ::sched_yield();  // it may want this very core
  }
  // The sleeping thread has left its mood behind; peers need not wake it while we are here.
  if (driver_) bell_.word()->mood.store(static_cast<uint32_t>(Mood::awake), std::memory_order_seq_cst);
  ring_no_more();
  int yields = 0;
  const DefaultFloatMode floats;  // a caller's thread may have another one
  while (driver_ && !op.done()) {
    const bool moved = driver_->step(true);
    if (submissions_.must_watch()) watch();
    if (moved) {
      idle_since = Clock::now();
      yields = 0;
      continue;
    }
    const bool peers = driver_->awaits_peers();
    const auto idle = Clock::now() - idle_since;
    if (spin_ ? idle > (peers ? spin_window_ : kDriveSpin) : ++yields > kDriveYields || (peers && spin_window_ < kDriveSpin)) {
      if (!peers || !doze(op, stay)) break;
      // Spinning is for messages that are about to come. How long they take lately says whether that is worth it.
      const bool soon = Clock::now() - idle_since <= kDriveSpin;
      spin_window_ = soon ? kDriveSpin : spin_window_ / 2;
      continue;
    }
    if (!spin_) ::sched_yield();
  }
  release_baton();
  return op.done();
}

// Sleeps with the baton until a peer's message or the bell. False: time to leave it to the thread.
bool Engine::doze(Operation& op, Deadline deadline) {
  const auto left = deadline.when() - Clock::now();
  if (left <= Clock::duration::zero() || stop_.load(std::memory_order_seq_cst)) return false;
  std::vector<std::pair<int, short>> fds;
  driver_->poll_fds(fds);
  std::vector<pollfd> polls{{bell_.fd(), POLLIN, 0}, {timer_, POLLIN, 0}};
  for (auto [fd, events] : fds) polls.push_back({fd, events, 0});
  const timespec timeout{
      0, static_cast<long>(std::chrono::nanoseconds(std::min<Clock::duration>(left, std::chrono::milliseconds(100))).count())};
  bell_.word()->mood.store(static_cast<uint32_t>(Mood::waiting), std::memory_order_seq_cst);
  if (!op.done() && !stop_.load(std::memory_order_seq_cst) && !driver_->work_waiting()) {
    observers_.tell(&Observer::asleep, static_cast<double>(timeout.tv_nsec) * 1e-9);
    ::ppoll(polls.data(), polls.size(), &timeout, nullptr);
    observers_.tell(&Observer::awake);
  }
  bell_.word()->mood.store(static_cast<uint32_t>(Mood::awake), std::memory_order_seq_cst);
  if (!polls[0].revents && !polls[1].revents) return true;
  // What this may take away from the thread, which sleeps on the same bell, release_baton() gives back.
  stop_ringing();
  return true;
}

// The thread may be asleep with a mood that no longer fits, or with nobody left to wake it for what is still to do.
void Engine::release_baton() {
  const bool ring = driver_ && parked_;
  bool work = false;
  if (ring) {
    bell_.word()->mood.store(static_cast<uint32_t>(driver_->resting_mood()), std::memory_order_seq_cst);
    work =
        driver_->work_waiting() || driver_->resting_seconds() < kLongRest || stop_.load() || driver_->unsent() || driver_->awaits_peers();
  }
  baton_.unlock();
  if (work) bell_.ring();
}

bool Engine::poll(Operation& op) {
  if (abandoned_) return op.done();
  submissions_.fence();
  if (op.done()) return true;
  const double polled = asked_for(op);
  if (polled > kNudgeAfter && submissions_.nudge(op, polled > kImpatientAfter)) bell_.ring();
  return op.done();
}

// ---- the thread -----------------------------------------------------------------------------------------------------------
void Engine::run() {
  pthread_setname_np(pthread_self(), "hvd-engine");
  if (cpu_ >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu_, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a core that we may not use is not worth failing for
  }
  const DefaultFloatMode floats;  // threads begin with the mode of the one that starts them
  baton_.lock();
  while (!stop_.load(std::memory_order_seq_cst)) {
    const bool moved = driver_->step(false);
    if (submissions_.must_watch()) watch();
    if (!moved) park();
  }
  baton_.unlock();
}

// The schedule waits for more of the program's operations, which may never come.
void Engine::watch() {
  if (watching_.load(std::memory_order_seq_cst) || watching_.exchange(true, std::memory_order_seq_cst)) return;
  const itimerspec later{{0, 0}, {static_cast<time_t>(kWatch), 0}};
  ::timerfd_settime(watch_, 0, &later, nullptr);
}

void Engine::look_after_unattended() {
  uint64_t drained;
  if (::read(watch_, &drained, sizeof drained) < 0) return;  // not yet
  watching_.store(false, std::memory_order_seq_cst);
  bool waiting = false;
  (void)submissions_.nudge_unattended(kWatch, kImpatientAfter, &waiting);  // step() sees that this rank has left the schedule
  if (waiting) watch();  // others may be next
}

// Sleeps without the baton until the bell rings, a control message comes, or it is time to look.
void Engine::park() {
  std::vector<std::pair<int, short>> fds;
  driver_->poll_fds(fds);
  std::vector<pollfd> polls{{bell_.fd(), POLLIN, 0}, {timer_, POLLIN, 0}, {watch_, POLLIN, 0}};
  for (auto [fd, events] : fds) polls.push_back({fd, events, 0});
  const double seconds = driver_->resting_seconds();
  timespec timeout{static_cast<time_t>(seconds), static_cast<long>((seconds - static_cast<time_t>(seconds)) * 1e9)};
  bell_.word()->mood.store(static_cast<uint32_t>(driver_->resting_mood()), std::memory_order_seq_cst);
  if (stop_.load(std::memory_order_seq_cst) || driver_->work_waiting()) {
    bell_.word()->mood.store(static_cast<uint32_t>(Mood::awake), std::memory_order_seq_cst);
    return;
  }
  observers_.tell(&Observer::asleep, seconds);
  parked_ = true;
  baton_.unlock();
  ::ppoll(polls.data(), polls.size(), &timeout, nullptr);
  baton_.lock();
  parked_ = false;
  observers_.tell(&Observer::awake);
  bell_.word()->mood.store(static_cast<uint32_t>(Mood::awake), std::memory_order_seq_cst);
  stop_ringing();
  if (polls[2].revents) look_after_unattended();
}

// Woken; looks for news next.
void Engine::stop_ringing() {
  uint64_t drained;
  while (::read(bell_.fd(), &drained, sizeof drained) < 0 && errno == EINTR) {
  }
  std::lock_guard lock(timer_mutex_);
  while (::read(timer_, &drained, sizeof drained) < 0 && errno == EINTR) {
  }
  timer_set_.store(false, std::memory_order_seq_cst);
}

// A forked child inherits the descriptors but not the thread. While it holds the sockets open, peers cannot see that this process has
// died; so it closes its copies, and touches nothing else.
void Engine::abandon_in_child() {
  abandoned_ = true;
  for (int fd : fds_) ::close(fd);
  ::close(bell_.fd());
  if (timer_ >= 0) ::close(timer_);
  if (watch_ >= 0) ::close(watch_);
}

// ---- the end --------------------------------------------------------------------------------------------------------------
void Engine::shutdown(const std::string& reason) {
  std::lock_guard once(shutdown_mutex_);
  if (!driver_) return;
  driver_->request_stop();
  stop_.store(true, std::memory_order_seq_cst);
  bell_.ring();
  thread_.join();
  std::lock_guard baton(baton_);
  driver_->leave(reason);
  last_stats_ = read_stats();
  driver_.reset();
}

Engine::Stats Engine::stats() const {
  std::lock_guard once(shutdown_mutex_);
  return driver_ ? read_stats() : last_stats_;
}

Engine::Stats Engine::read_stats() const {
  World& world = driver_->world();
  return {counters_->read(), world.unstaged_bytes(), arena_->used(), world.wire_bytes(), world.scratch_held()};
}

}  // namespace hvd
