#include "nccl/communicator.h"

#include <vector>

#include "base/thread.h"
#include "nccl/collectives.h"

namespace hvd::nccl {
namespace {

// A thread inside, for as long as it calls NCCL.
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
constexpr size_t kTiny = 4;  // elements of float32 a rank: 16 bytes, to which NCCL aligns

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
  if (state_.load() != State::making) return;  // given up meanwhile: that is why it failed
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

bool Communicator::wait_for_handle() const {
  while (creating_.load(std::memory_order_acquire) && !handle()) std::this_thread::sleep_for(kPause);
  return handle() != nullptr;
}

void Communicator::create(const UniqueId& id, const WarmUp& warm_up) {
  Inside inside(surroundings_);
  {
    std::lock_guard lock(mutex_);
    if (state_.load() != State::making) return;
    creating_.store(true, std::memory_order_release);
  }
  Config config;
  const Result result = library_.comm_init_rank_config(&handle_, size_, id, rank_, &config);
  creating_.store(false, std::memory_order_release);
  Status s = connect(result, "ncclCommInitRankConfig");
  if (s.ok() && warm_up.memory) {
    s = call_each(warm_up, kTiny);
    const size_t most = warm_up.bytes / (2 * sizeof(float) * static_cast<size_t>(size_)) / kTiny * kTiny;
    if (s.ok() && most > kTiny) s = call_each(warm_up, most);
  }
  if (!s.ok())
    return fail(s.with("making an NCCL communicator of " + std::to_string(size_) + " ranks, as its rank " + std::to_string(rank_)));
  std::lock_guard lock(mutex_);
  if (state_.load() == State::making) state_.store(State::ready, std::memory_order_release);
}

// The result of a call on the helper thread, which has all the time there is: whoever has not gives the communicator up.
Status Communicator::connect(Result result, const char* what) {
  while (result == kInProgress) {
    if (state() == State::given_up) return error();
    if (const Result asked = library_.comm_get_async_error(handle(), &result); asked != kSuccess) result = asked;
    if (result == kInProgress) std::this_thread::sleep_for(kPause);
  }
  if (state() == State::given_up) return error();  // NCCL may have freed it: no further call
  return status_of(library_, result, what, handle());
}

// Each collective once, with `count` elements a rank. Sends and receives go to every peer, which is what connects them.
Status Communicator::call_each(const WarmUp& w, size_t count) {
  auto* in = static_cast<float*>(w.memory);
  float* out = in + count * static_cast<size_t>(size_);
  const Library& l = library_;
  const size_t all = count * static_cast<size_t>(size_);
  constexpr Type t = Type::float32;
  constexpr int sum = static_cast<int>(Op::sum);
  HVD_RETURN_IF_ERROR(connect(l.all_reduce(in, out, all, t, sum, handle_, w.stream), "ncclAllReduce"));
  HVD_RETURN_IF_ERROR(connect(l.broadcast(in, in, all, t, 0, handle_, w.stream), "ncclBroadcast"));
  HVD_RETURN_IF_ERROR(connect(l.all_gather(in, out, count, t, handle_, w.stream), "ncclAllGather"));
  HVD_RETURN_IF_ERROR(connect(l.reduce_scatter(in, out, count, t, sum, handle_, w.stream), "ncclReduceScatter"));
  HVD_RETURN_IF_ERROR(connect(l.reduce(in, out, all, t, sum, 0, handle_, w.stream), "ncclReduce"));
  HVD_RETURN_IF_ERROR(connect(l.group_start(), "ncclGroupStart"));
  Result worst = kSuccess;
  for (int peer = 0; peer < size_ && worst == kSuccess; ++peer) {
    const size_t at = count * static_cast<size_t>(peer);
    worst = l.send(in + at, count, t, peer, handle_, w.stream);
    if (worst == kSuccess || worst == kInProgress) worst = l.recv(out + at, count, t, peer, handle_, w.stream);
    if (worst == kInProgress) worst = kSuccess;
  }
  const Status queued = status_of(l, worst, "ncclSend or ncclRecv", handle_);
  const Status sent = connect(l.group_end(), "ncclGroupEnd");
  return queued.ok() ? sent : queued;
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

// ---- the end ---------------------------------------------------------------------------------------------------------------

std::shared_ptr<Ending> Ending::start(Way way, Communicators communicators, Status why, double seconds) {
  std::vector<std::shared_ptr<Communicator>> well, others;
  for (const auto& c : communicators) {
    const Communicator::State before = c->give_up(why);
    if (before == Communicator::State::given_up) continue;
    (before == Communicator::State::ready && way == Way::destroy ? well : others).push_back(c);
  }
  const size_t n = well.size() + others.size();
  const char* verb = way == Way::abort ? "aborting " : "destroying ";
  std::shared_ptr<Ending> ending(new Ending(seconds, verb + std::to_string(n) + (n == 1 ? " NCCL communicator" : " NCCL communicators")));
  if (n == 0) {
    ending->done_.store(true, std::memory_order_release);
    return ending;
  }
  // One thread for all: they are of one device, or each would need the context of its own.
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
    if (c->wait_for_handle()) there.push_back(c.get());
  }
  if (there.empty()) return {};
  const Library& l = there.front()->library();
  std::vector<Status> said(there.size());
  if (there.size() == 1 || l.aborts_in_groups()) {
    if (there.size() > 1) said.push_back(status_of(l, l.group_start(), "ncclGroupStart", nullptr));
    for (Communicator* c : there) said.push_back(status_of(l, l.comm_abort(c->handle()), "ncclCommAbort", nullptr));
    if (there.size() > 1) said.push_back(status_of(l, l.group_end(), "ncclGroupEnd", nullptr));
  } else {
    // One may wait for the kernels of another, which end only when that is aborted too.
    std::vector<std::thread> threads;
    for (size_t i = 0; i < there.size(); ++i) {
      threads.push_back(thread_without_signals([&, i] {
        Inside inside(there[i]->surroundings());
        said[i] = status_of(l, l.comm_abort(there[i]->handle()), "ncclCommAbort", nullptr);
      }));
    }
    for (std::thread& t : threads) t.join();
  }
  for (Status& s : said) {
    if (!s.ok()) return std::move(s);
  }
  return {};
}

Status Ending::destroy_all(Communicators communicators) {
  Status first;
  for (const auto& c : communicators) {
    const Library& l = c->library();
    Result r = l.comm_finalize(c->handle());
    while (r == kInProgress) {
      std::this_thread::sleep_for(kPause);
      if (const Result asked = l.comm_get_async_error(c->handle(), &r); asked != kSuccess) r = asked;
    }
    Status s = status_of(l, r, "ncclCommFinalize", c->handle());
    // Memory is released in any case.
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
    return {Code::timeout, what_ + " did not end within " + seconds + " s; what it holds is left to the end of the process"};
  }
  std::lock_guard lock(mutex_);
  return outcome_;
}

void Ending::wait() const {
  while (!over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::shared_ptr<Ending> abort(std::span<const std::shared_ptr<Communicator>> communicators, Status why, double seconds) {
  if (why.ok()) why = Status(Code::shutdown, "the NCCL communicator was aborted");
  return Ending::start(Ending::Way::abort, communicators, std::move(why), seconds);
}

std::shared_ptr<Ending> destroy(std::span<const std::shared_ptr<Communicator>> communicators, double seconds) {
  return Ending::start(Ending::Way::destroy, communicators, {}, seconds);
}

}  // namespace hvd::nccl
