#include "engine/engine.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/thread.h"

namespace hvd {
namespace {

int64_t nanoseconds() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

// Return the number of seconds since a caller first waited for `op`. Most callers wait in short slices so that they can
// handle signals in between.
double asked_for(Operation& op) {
  int64_t first = 0;
  const int64_t now = nanoseconds();
  if (op.first_poll.compare_exchange_strong(first, now)) first = now;
  return static_cast<double>(now - first) * 1e-9;
}

}  // namespace

Engine::Engine(EngineOptions options)
    : accelerator_(options.settings.cuda_library, options.size > 1 && (options.ipc.wanted || options.nccl.wanted())),
      submissions_(options.rank, options.size), watchdog_(&submissions_) {
  talk_through_memory(options);
  fds_ = descriptors(options);
  const int cpu = options.settings.cpu;
  const bool spin = options.settings.spins > 0;
  observers_.add(counters_);
  driver_ = std::make_unique<Driver>(options, &submissions_, &observers_, &message_bus_, &abort_request_);
  if (const int watch = driver_->control().watch_fd(); watch >= 0) fds_.push_back(watch);
  Connections& connections = driver_->connections();
  arena_ = std::make_shared<Arena>(connections.segment_pointer(), connections.local_rank());
  waker_.attach(connections.wakeup(), connections.segment_pointer());
  progress_lock_ = std::make_unique<ProgressLock>(driver_.get(), &observers_, &waker_, &watchdog_, spin);
  thread_ = thread_without_signals([this, cpu] { run(cpu); });
}

Engine::~Engine() { shutdown(""); }

Status Engine::submit(Request request, const std::byte* in, std::byte* out, OperationPtr* result, float* residual, const Place* place) {
  return accept(std::move(request), in, out, result, residual, place, true);
}

Status Engine::submit_blocking(Request request, const std::byte* in, std::byte* out, OperationPtr* result, float* residual,
                               const Place* place) {
  return accept(std::move(request), in, out, result, residual, place, false);
}

Status Engine::accept(Request request, const std::byte* in, std::byte* out, OperationPtr* result, float* residual, const Place* place,
                      bool ring) {
  auto op = std::make_shared<Operation>();
  op->request = std::move(request);
  op->in = in;
  op->out = out;
  op->residual = residual;
  if (place) {
    if (abandoned_) return Status(Code::shutdown, "the engine belongs to the parent process; a forked child cannot use it");
    const Request& q = op->request;
    if (Status s = accelerator_.mark(*place, op.get()); !s.ok()) return s.with(std::string(name_of(q.kind)) + " '" + q.name + "'");
  }
  bool wake = false;
  HVD_RETURN_IF_ERROR(enqueue(op, &wake));
  if (wake && ring) waker_.notify_soon();
  *result = std::move(op);
  return {};
}

Status Engine::enqueue(const OperationPtr& op, bool* wake) {
  observers_.stamp(*op);
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
  waits_->unattended();
  watchdog_.start();
  // No caller waits and runs the progress loop, so wake the engine's thread.
  if (wake) waker_.notify_now();
  return {};
}

Status Engine::submit_again(OperationPtr* op, const std::byte* in, std::byte* out, bool blocking) {
  if (abandoned_) return Status(Code::shutdown, "the engine belongs to the parent process; a forked child cannot use it");
  if (!(*op)->done()) {
    const Request& q = (*op)->request;
    return Status(Code::invalid_argument,
                  std::string(name_of(q.kind)) + ": the operation is still in flight; wait for it before you submit it again");
  }
  if ((*op)->on_device) return Status(Code::invalid_argument, "an operation on a device cannot be submitted again; create a new one");
  if (op->use_count() == 1) {
    (*op)->reuse();
  } else {
    // The driver, for example, might still refer to the old operation, so create a new one.
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
  observers_.stamp(**op);
  observers_.tell_submission(&Observer::submitted, **op);
  Status status = submissions_.submit_again(*op, &wake);
  if (!status.ok()) {
    observers_.tell_submission(&Observer::refused, **op, status);
    // Complete the rejected operation, because it is pending and nothing else would complete it.
    (*op)->complete(status);
  }
  if (wake && !blocking) waker_.notify_soon();
  return status;
}

bool Engine::post_message(ObserverMessage message) {
  if (abandoned_ || !message_bus_.post(std::move(message))) return false;
  waker_.notify();
  return true;
}

void Engine::give_up(Status why) {
  if (abandoned_) return;
  abort_request_.request(std::move(why));
  waker_.notify();
}

void Engine::ask_who_waits() {
  if (abandoned_) return;
  message_bus_.ask_who_waits();
  waker_.notify();
}

// ---- Waiting for operations -----------------------------------------------------------------------------------------
bool Engine::drive(Operation& op, Deadline deadline) {
  submissions_.fence();
  if (op.done()) return true;
  const Waits::Blocked blocked(*waits_, !op.awaited.exchange(true));
  if (progress_lock_->drive(op, deadline)) return true;
  waker_.wake();
  return false;
}

bool Engine::wait(Operation& op, Deadline deadline) {
  // A forked child must not use the engine of its parent. It must not take a lock either, which another thread might have held during the
  // fork.
  if (abandoned_) return op.sleep_until(deadline);
  if (drive(op, deadline)) return true;
  const Waits::Blocked blocked(*waits_, false);
  if (op.sleep_until(std::min(deadline, Deadline::after(kNudgeAfter), [](auto& a, auto& b) { return a.when() < b.when(); }))) return true;
  while (!op.done()) {
    if (submissions_.nudge(op, asked_for(op) > kImpatientAfter)) waker_.notify();
    if (deadline.passed()) return false;
    // Sleep in short slices, because the operation can also get stuck in a schedule that starts later.
    const Deadline slice = Deadline::after(0.1);
    op.sleep_until(slice.when() < deadline.when() ? slice : deadline);
  }
  return true;
}

bool Engine::poll(Operation& op) {
  if (abandoned_) return op.done();
  submissions_.fence();
  if (op.done()) return true;
  const double polled = asked_for(op);
  if (polled > kNudgeAfter && submissions_.nudge(op, polled > kImpatientAfter)) waker_.notify();
  return op.done();
}

void Engine::run(int cpu) {
  pthread_setname_np(pthread_self(), "hvd-engine");
  if (cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    // A thread that cannot be bound to the core runs on any core.
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
  progress_lock_->run();
}

// ---- Shutdown of the engine -----------------------------------------------------------------------------------------

// Close a forked child's copies of the descriptors, and touch nothing else: the child has no engine thread. As long as the child has the
// sockets open, peers cannot detect the death of the parent.
void Engine::abandon_in_child() {
  abandoned_ = true;
  for (int fd : fds_) ::close(fd);
  waker_.close();
  watchdog_.close();
}

void Engine::shutdown(const std::string& reason) {
  std::lock_guard once(shutdown_mutex_);
  if (!driver_) return;
  driver_->request_stop();
  progress_lock_->stop();
  thread_.join();
  progress_lock_->retire([&] {
    driver_->leave(reason);
    last_stats_ = read_stats();
    driver_.reset();
  });
}

Engine::Stats Engine::stats() const {
  std::lock_guard once(shutdown_mutex_);
  return driver_ ? read_stats() : last_stats_;
}

Engine::Stats Engine::read_stats() const {
  Connections& connections = driver_->connections();
  const Control& control = driver_->control();
  return {counters_->read(),          connections.unstaged_bytes(), arena_->used(),           connections.wire_bytes(),
          connections.scratch_held(), control.sent().read(),        control.received().read()};
}

}  // namespace hvd
