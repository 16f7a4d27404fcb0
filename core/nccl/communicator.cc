#include "nccl/communicator.h"

#include <vector>

#include "base/thread.h"
#include "nccl/collectives.h"

namespace hvd::nccl {
namespace {

// RAII scope that runs the hooks of Surroundings before and after a thread's NCCL calls.
class Inside {
 public:
  explicit Inside(const Surroundings& s) : s_(s) {
    if (s_.enter) s_.enter(s_.self);
  }
  ~Inside() {
    if (s_.leave) s_.leave(s_.self);
  }
  Inside(const Inside&) = delete;

 private:
  const Surroundings& s_;
};

constexpr auto kPause = std::chrono::microseconds(50);
constexpr double kGrace = 0.05;
// Number of float32 elements per rank in the warm-up. Four elements occupy 16 bytes, which is NCCL's alignment.
constexpr size_t kTiny = 4;

}  // namespace

size_t warm_up_bytes(int size) { return 2 * kTiny * sizeof(float) * static_cast<size_t>(size); }

std::shared_ptr<Communicator> Communicator::make(const Library& library, const Surroundings& surroundings, const UniqueId& id, int size,
                                                 int rank, const WarmUp& warm_up) {
  std::shared_ptr<Communicator> c(new Communicator(library, surroundings, size, rank));
  thread_without_signals([c, id, warm_up] { c->create(id, warm_up); }).detach();
  return c;
}

Status Communicator::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void Communicator::fail(Status why) {
  std::lock_guard lock(mutex_);
  // Keep the first failure reason: the communicator may already have been abandoned during the call.
  if (state_.load() != State::making) return;
  error_ = std::move(why);
  state_.store(State::failed, std::memory_order_release);
}

Communicator::State Communicator::give_up(Status why) {
  std::lock_guard lock(mutex_);
  const State before = state_.load();
  if (before == State::given_up) return before;
  error_ = why.ok() ? Status(Code::shutdown, "the NCCL communicator is destroyed") : std::move(why);
  state_.store(State::given_up, std::memory_order_release);
  return before;
}

bool Communicator::seize() {
  End finalizing = End::finalizing;
  return end_.compare_exchange_strong(finalizing, End::seized);
}

bool Communicator::enter_ending() {
  inside_.store(true);
  if (end_.load() != End::seized) return true;
  inside_.store(false);
  return false;
}

// Wait until the helper thread is not in an NCCL call. Once the communicator is abandoned, the thread starts no further call. Its current
// call ends soon, unless it waits for other ranks. Only an abort ends such a wait, and it needs the handle, which NCCL writes first.
bool Communicator::wait_for_helper() const {
  const Deadline grace = Deadline::after(kGrace);
  while (inside_.load(std::memory_order_acquire) && !(handle() && grace.passed())) std::this_thread::sleep_for(kPause);
  return handle() != nullptr;
}

bool Communicator::enter_call() {
  std::lock_guard lock(mutex_);
  if (state_.load() != State::making) return false;
  inside_.store(true, std::memory_order_release);
  return true;
}

void Communicator::create(const UniqueId& id, const WarmUp& warm_up) {
  Inside inside(surroundings_);
  Config config;
  Status s = connect("ncclCommInitRankConfig", [&] { return library_.comm_init_rank_config(&handle_, size_, id, rank_, &config); });
  if (s.ok() && warm_up.memory) {
    s = call_each(warm_up, kTiny);
    const size_t most = warm_up.bytes / (2 * sizeof(float) * static_cast<size_t>(size_)) / kTiny * kTiny;
    if (s.ok() && most > kTiny) s = call_each(warm_up, most);
  }
  if (!s.ok()) {
    return fail(s.with("creating an NCCL communicator of " + std::to_string(size_) + " ranks, as its rank " + std::to_string(rank_)));
  }
  std::lock_guard lock(mutex_);
  if (state_.load() == State::making) state_.store(State::ready, std::memory_order_release);
}

// Run an NCCL call on the helper thread, without a timeout. If the owner abandons the communicator meanwhile, return an error.
template <class Call>
Status Communicator::connect(const char* what, Call call) {
  if (!enter_call()) return error();
  Result result = call();
  Status s = status_of(library_, result, what, nullptr);
  leave_call();
  while (result == kInProgress) {
    std::this_thread::sleep_for(kPause);
    if (!enter_call()) return error();
    if (const Result asked = library_.comm_get_async_error(handle(), &result); asked != kSuccess) result = asked;
    s = status_of(library_, result, what, nullptr);
    leave_call();
  }
  return s;
}

// Call each collective once, with `count` elements per rank. Also send to and receive from every peer, because NCCL
// creates the connection to a peer at its first use.
Status Communicator::call_each(const WarmUp& w, size_t count) {
  auto* in = static_cast<float*>(w.memory);
  float* out = in + count * static_cast<size_t>(size_);
  const Library& l = library_;
  const size_t all = count * static_cast<size_t>(size_);
  constexpr Type t = Type::float32;
  constexpr int sum = static_cast<int>(Op::sum);
  HVD_RETURN_IF_ERROR(connect("ncclAllReduce", [&] { return l.all_reduce(in, out, all, t, sum, handle_, w.stream); }));
  HVD_RETURN_IF_ERROR(connect("ncclBroadcast", [&] { return l.broadcast(in, in, all, t, 0, handle_, w.stream); }));
  HVD_RETURN_IF_ERROR(connect("ncclAllGather", [&] { return l.all_gather(in, out, count, t, handle_, w.stream); }));
  HVD_RETURN_IF_ERROR(connect("ncclReduceScatter", [&] { return l.reduce_scatter(in, out, count, t, sum, handle_, w.stream); }));
  HVD_RETURN_IF_ERROR(connect("ncclReduce", [&] { return l.reduce(in, out, all, t, sum, 0, handle_, w.stream); }));
  return connect("a group of ncclSend and ncclRecv", [&] {
    if (const Result started = l.group_start(); started != kSuccess) return started;
    Result queued = kSuccess;
    for (int peer = 0; peer < size_ && (queued == kSuccess || queued == kInProgress); ++peer) {
      const size_t at = count * static_cast<size_t>(peer);
      queued = l.send(in + at, count, t, peer, handle_, w.stream);
      if (queued == kSuccess || queued == kInProgress) queued = l.recv(out + at, count, t, peer, handle_, w.stream);
    }
    const Result ended = l.group_end();
    return queued == kSuccess || queued == kInProgress ? ended : queued;
  });
}

Status Communicator::settle(Result result, const char* what) {
  if (result != kInProgress) return status_of(library_, result, what, handle());
  const Deadline deadline = Deadline::after(patience_);
  while (result == kInProgress) {
    if (state() == State::given_up) return error();
    if (const Result asked = library_.comm_get_async_error(handle(), &result); asked != kSuccess) result = asked;
    if (result != kInProgress) break;
    if (deadline.passed())
      return {Code::timeout, std::string(what) + " was still in progress after " + std::to_string(static_cast<int>(patience_)) + " s"};
    std::this_thread::sleep_for(kPause);
  }
  return status_of(library_, result, what, handle());
}

Status Communicator::async_error() {
  if (state() != State::ready) return error();
  Result noticed = kSuccess;
  const Result asked = library_.comm_get_async_error(handle(), &noticed);
  return status_of(library_, asked != kSuccess ? asked : noticed, asked != kSuccess ? "ncclCommGetAsyncError" : "communication", handle());
}

// ---- Ending communicators -------------------------------------------------------------------------------------------

std::shared_ptr<Ending> Ending::start(Method method, Communicators communicators, Status why, double seconds) {
  std::vector<std::shared_ptr<Communicator>> well, others;
  for (const auto& c : communicators) {
    const Communicator::State before = c->give_up(why);
    if (before == Communicator::State::given_up) {
      if (method == Method::abort && c->seize()) others.push_back(c);
      continue;
    }
    const bool is_well = before == Communicator::State::ready && method == Method::destroy;
    if (is_well) c->end_.store(Communicator::End::finalizing);
    (is_well ? well : others).push_back(c);
  }
  const size_t n = well.size() + others.size();
  const char* verb = method == Method::abort ? "aborting " : "destroying ";
  std::shared_ptr<Ending> ending(new Ending(seconds, verb + std::to_string(n) + (n == 1 ? " NCCL communicator" : " NCCL communicators")));
  if (n == 0) {
    ending->done_.store(true, std::memory_order_release);
    return ending;
  }
  // End all communicators on one thread. They are on the same device, so this thread sets the device's context only
  // once.
  thread_without_signals([ending, well = std::move(well), others = std::move(others)] {
    Status s;
    {
      Inside inside((well.empty() ? others : well).front()->surroundings());
      s = abort_all(others);
      if (Status destroyed = destroy_all(well); s.ok()) s = std::move(destroyed);
    }
    {
      std::lock_guard lock(ending->mutex_);
      ending->outcome_ = std::move(s);
    }
    ending->done_.store(true, std::memory_order_release);
  }).detach();
  return ending;
}

Status Ending::abort_all(Communicators communicators) {
  std::vector<Communicator*> there;
  for (const auto& c : communicators) {
    if (c->wait_for_helper()) there.push_back(c.get());
  }
  if (there.empty()) return {};
  const Library& l = there.front()->library();
  std::vector<Status> statuses(there.size());
  if (there.size() == 1 || l.aborts_in_groups()) {
    if (there.size() > 1) statuses.push_back(status_of(l, l.group_start(), "ncclGroupStart", nullptr));
    for (Communicator* c : there) statuses.push_back(status_of(l, l.comm_abort(c->handle()), "ncclCommAbort", nullptr));
    if (there.size() > 1) statuses.push_back(status_of(l, l.group_end(), "ncclGroupEnd", nullptr));
  } else {
    // Abort each communicator on a separate thread. The abort of one can wait for the kernels of another, which end
    // only when the other is aborted too.
    std::vector<std::thread> threads;
    for (size_t i = 0; i < there.size(); ++i) {
      threads.push_back(thread_without_signals([&, i] {
        Inside inside(there[i]->surroundings());
        statuses[i] = status_of(l, l.comm_abort(there[i]->handle()), "ncclCommAbort", nullptr);
      }));
    }
    for (std::thread& t : threads) t.join();
  }
  for (Status& s : statuses) {
    if (!s.ok()) return std::move(s);
  }
  return {};
}

Status Ending::destroy_all(Communicators communicators) {
  Status first;
  for (const auto& c : communicators) {
    const Library& l = c->library();
    Result r = kInProgress;
    bool begun = false;
    while (r == kInProgress && c->enter_ending()) {
      if (!begun) {
        r = l.comm_finalize(c->handle());
        begun = true;
      } else if (const Result asked = l.comm_get_async_error(c->handle(), &r); asked != kSuccess) {
        r = asked;
      }
      c->leave_call();
      if (r == kInProgress) std::this_thread::sleep_for(kPause);
    }
    auto finalizing = Communicator::End::finalizing;
    if (!c->end_.compare_exchange_strong(finalizing, Communicator::End::freeing)) {
      if (first.ok()) first = Status(Code::internal, "an NCCL communicator was aborted while it was destroyed");
      // Another thread is aborting this communicator and will free it.
      continue;
    }
    Status s = status_of(l, r, "ncclCommFinalize", c->handle());
    // Release the communicator's memory even after an error.
    const Status freed = status_of(l, l.comm_destroy(c->handle()), "ncclCommDestroy", nullptr);
    if (s.ok()) s = freed;
    if (first.ok()) first = std::move(s);
  }
  return first;
}

bool Ending::over() const { return done_.load(std::memory_order_acquire) || deadline_.passed(); }
bool Ending::leaked() const { return !done_.load(std::memory_order_acquire) && deadline_.passed(); }

Status Ending::outcome() const {
  if (!done_.load(std::memory_order_acquire)) {
    std::string seconds = std::to_string(seconds_);
    seconds.resize(seconds.find('.') + 2);
    return {Code::timeout, what_ + " did not end within " + seconds + " s; its resources are released when the process ends"};
  }
  std::lock_guard lock(mutex_);
  return outcome_;
}

void Ending::wait() const {
  while (!over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::shared_ptr<Ending> abort(std::span<const std::shared_ptr<Communicator>> communicators, Status why, double seconds) {
  if (why.ok()) why = Status(Code::shutdown, "the NCCL communicator was aborted");
  return Ending::start(Ending::Method::abort, communicators, std::move(why), seconds);
}

std::shared_ptr<Ending> destroy(std::span<const std::shared_ptr<Communicator>> communicators, double seconds) {
  return Ending::start(Ending::Method::destroy, communicators, {}, seconds);
}

}  // namespace hvd::nccl
