// Communicators of NCCL: made, warmed up, aborted and destroyed on helper threads, because each of these may wait for other ranks for ever.
// The owner polls, with deadlines of its own; nothing here blocks it.
//
// Communicators are blocking (blocking=1): a call only launches, and an event recorded after it covers it. NCCL_COMM_BLOCKING=0 overrides
// that in NCCL; then each call answers "in progress", and settle() waits until it is enqueued.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/deadline.h"
#include "base/status.h"
#include "nccl/library.h"

namespace hvd::nccl {

// What a thread does before it touches NCCL and afterwards: push the device's context, set the capture mode. May be null. `self` has to
// live as long as the process, since a thread that hangs keeps it.
struct Surroundings {
  void (*enter)(void* self) = nullptr;
  void (*leave)(void* self) = nullptr;
  void* self = nullptr;
};

// NCCL connects when an algorithm is used first. So that later calls only launch, each collective is called once on this memory.
struct WarmUp {
  Stream stream = nullptr;
  void* memory = nullptr;  // of the device; null: no warm-up. Used by the stream after creation: record an event before it is freed
  size_t bytes = 0;  // at least warm_up_bytes(size). With more, each collective is called again with as much as fits
};
size_t warm_up_bytes(int size);

class Communicator {
 public:
  enum class State : int { making, ready, failed, given_up };

  // Returns at once; ready() tells when it is made. All members call it with the same id.
  static std::shared_ptr<Communicator> make(const Library& library, const Surroundings& surroundings, const UniqueId& id, int size,
                                            int rank, const WarmUp& warm_up = {});
  // Nothing is destroyed here: destroy() or abort() first. An object that was neither is leaked by NCCL, and its helper goes on.
  ~Communicator() = default;
  Communicator(const Communicator&) = delete;

  State state() const { return state_.load(std::memory_order_acquire); }
  bool ready() const { return state() == State::ready; }
  Status error() const;  // why it failed, or was given up; of any thread

  const Library& library() const { return library_; }
  const Surroundings& surroundings() const { return surroundings_; }
  Handle handle() const { return __atomic_load_n(&handle_, __ATOMIC_ACQUIRE); }
  int size() const { return size_; }
  int rank() const { return rank_; }

  // For calls from the owner's thread, whose context is current: what `what` returned. Waits, in polls, while NCCL says that it is in
  // progress: never where it is blocking.
  Status settle(Result result, const char* what);
  void set_patience(double seconds) { patience_ = seconds; }  // of settle()

  // What NCCL has noticed by itself: errors of networks, never the death of a process on the same host. Cheap; on any thread.
  Status async_error();

 private:
  friend class Ending;
  Communicator(const Library& library, const Surroundings& surroundings, int size, int rank)
      : library_(library), surroundings_(surroundings), size_(size), rank_(rank) {}
  void create(const UniqueId& id, const WarmUp& warm_up);
  Status call_each(const WarmUp& warm_up, size_t count);
  // The helper's way into NCCL, and out of it: false when the communicator is given up, and there is nothing more to call. enter_ending:
  // the same for whoever destroys it; false when it was seized.
  bool enter_call();
  bool enter_ending();
  void leave_call() { inside_.store(false, std::memory_order_release); }
  template <class Call>
  Status connect(const char* what, Call call);
  State give_up(Status why);  // the state before
  bool seize();  // takes it from the one who destroys it, if that is not too late
  bool wait_for_helper() const;  // false: there is nothing for NCCL to end
  void fail(Status why);

  const Library& library_;
  const Surroundings surroundings_;
  const int size_, rank_;
  double patience_ = 60;
  Handle handle_ = nullptr;  // NCCL writes it before the work of creation starts, so that another thread can abort that
  std::atomic<State> state_{State::making};
  std::atomic<bool> inside_{false};  // the helper, or who destroys it, is in a call
  enum class End : int { none, finalizing, freeing, seized };
  std::atomic<End> end_{End::none};
  mutable std::mutex mutex_;
  Status error_;  // under mutex_
};

// The end of several communicators of one process, on a helper thread. Whoever started it polls; after the deadline the thread and what it
// holds are left to themselves, and outcome() says so. The communicators are unusable from the call on.
class Ending {
 public:
  bool over() const;  // done, or past the deadline
  bool leaked() const;  // past the deadline, and not done
  Status outcome() const;  // once over
  // For tests and the end of a process: sleeps until over().
  void wait() const;

 private:
  friend std::shared_ptr<Ending> abort(std::span<const std::shared_ptr<Communicator>>, Status, double);
  friend std::shared_ptr<Ending> destroy(std::span<const std::shared_ptr<Communicator>>, double);
  enum class Way { abort, destroy };
  using Communicators = std::span<const std::shared_ptr<Communicator>>;
  static std::shared_ptr<Ending> start(Way way, Communicators communicators, Status why, double seconds);
  Ending(double seconds, std::string what) : deadline_(Deadline::after(seconds)), seconds_(seconds), what_(std::move(what)) {}
  static Status abort_all(Communicators communicators);
  static Status destroy_all(Communicators communicators);

  const Deadline deadline_;
  const double seconds_;
  const std::string what_;
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  Status outcome_;  // under mutex_
};

// After the loss of a rank. The owner has marked the operations as failed *before*: their events now fire over garbage. Communicators that
// are still being made may be among them, and such as are being destroyed, which may wait for that rank: these end as well while NCCL waits
// for their kernels; once it frees them they are left to themselves. From 2.22 on all in one group, as they can only end together; before
// that each on a thread of its own. Every rank of the host has to do so. `why`: what later calls on them return.
std::shared_ptr<Ending> abort(std::span<const std::shared_ptr<Communicator>> communicators, Status why, double seconds);

// When everybody is well and nothing is in flight: waits for what is enqueued, then for the other ranks of the host, which do the same in
// the same order. Also waits for CUDA graphs that have captured their operations. Those that are not ready are aborted.
std::shared_ptr<Ending> destroy(std::span<const std::shared_ptr<Communicator>> communicators, double seconds);

}  // namespace hvd::nccl
