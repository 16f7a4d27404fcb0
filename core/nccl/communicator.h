// NCCL communicators. Helper threads create, warm up, abort and destroy them, because each of these steps can wait for
// other ranks forever. The functions here never block the owner, which polls with its own timeouts.
//
// Communicators are in blocking mode (blocking=1): calls launch the work before they return, so an event recorded after
// a call covers its work. The variable NCCL_COMM_BLOCKING=0 overrides this mode. Calls then return "in progress", and
// settle() waits until the work is enqueued.
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

// Hooks, possibly null, that a thread calls before and after it uses NCCL. They push the device's context and set the capture mode. `self`
// must live as long as the process, because a hung thread keeps using it.
struct Surroundings {
  void (*enter)(void* self) = nullptr;
  void (*leave)(void* self) = nullptr;
  void* self = nullptr;
};

// Memory for the warm-up, which calls each collective once. NCCL creates connections when an algorithm is first used, so later calls only
// launch kernels.
struct WarmUp {
  Stream stream = nullptr;
  // Device memory, or null for no warm-up. The stream can still use it when the communicator is ready, so record an event before freeing
  // it.
  void* memory = nullptr;
  // Size of `memory` in bytes, at least warm_up_bytes(size). If it is larger, the warm-up calls each collective a
  // second time, with as much data as fits.
  size_t bytes = 0;
};
size_t warm_up_bytes(int size);

class Communicator {
 public:
  enum class State : int { making, ready, failed, given_up };

  // Start creating a communicator and return immediately. ready() becomes true when the communicator exists. All its
  // ranks must call this with the same id.
  static std::shared_ptr<Communicator> make(const Library& library, const Surroundings& surroundings, const UniqueId& id, int size,
                                            int rank, const WarmUp& warm_up = {});
  // Call destroy() or abort() before the destructor. If neither is called, the communicator is leaked, and its helper
  // thread keeps running.
  ~Communicator() = default;
  Communicator(const Communicator&) = delete;

  State state() const { return state_.load(std::memory_order_acquire); }
  bool ready() const { return state() == State::ready; }
  // Return why the communicator failed or was abandoned. Callable from any thread.
  Status error() const;

  const Library& library() const { return library_; }
  const Surroundings& surroundings() const { return surroundings_; }
  Handle handle() const { return __atomic_load_n(&handle_, __ATOMIC_ACQUIRE); }
  int size() const { return size_; }
  int rank() const { return rank_; }

  // Check the result of an NCCL call that the owner's thread has made. `what` is the name of the function, and the
  // device's context must be current. Polls while NCCL returns "in progress", which happens only with
  // NCCL_COMM_BLOCKING=0.
  Status settle(Result result, const char* what);
  // Set the timeout, in seconds, for settle().
  void set_patience(double seconds) { patience_ = seconds; }

  // Return NCCL's asynchronous error. It reports network errors, but never the death of a process on the same host. The
  // call is cheap and can be made from any thread.
  Status async_error();

 private:
  friend class Ending;
  Communicator(const Library& library, const Surroundings& surroundings, int size, int rank)
      : library_(library), surroundings_(surroundings), size_(size), rank_(rank) {}
  void create(const UniqueId& id, const WarmUp& warm_up);
  Status call_each(const WarmUp& warm_up, size_t count);
  // Each NCCL call on the helper thread is enclosed in enter_call() and leave_call(). enter_call() returns false, and forbids the call, if
  // the communicator was abandoned. The thread that destroys the communicator calls enter_ending() instead. It returns false if another
  // thread has taken over the communicator.
  bool enter_call();
  bool enter_ending();
  void leave_call() { inside_.store(false, std::memory_order_release); }
  template <class Call>
  Status connect(const char* what, Call call);
  // Abandon the communicator and return its previous state.
  State give_up(Status why);
  // Take over the communicator from the thread that destroys it. Return false if that thread has already finished.
  bool seize();
  // Wait for the helper thread's current NCCL call. Return false if there is no NCCL communicator to destroy or abort.
  bool wait_for_helper() const;
  void fail(Status why);

  const Library& library_;
  const Surroundings surroundings_;
  const int size_, rank_;
  double patience_ = 60;
  // NCCL writes the handle before it starts to create the communicator, so that another thread can abort the creation.
  Handle handle_ = nullptr;
  std::atomic<State> state_{State::making};
  // True while the helper or the destroying thread is inside an NCCL call.
  std::atomic<bool> inside_{false};
  enum class End : int { none, finalizing, freeing, seized };
  std::atomic<End> end_{End::none};
  mutable std::mutex mutex_;
  // Why the communicator failed or was abandoned. Guarded by mutex_.
  Status error_;
};

// Shutdown of several communicators of one process on a helper thread that the caller polls. After the deadline, the
// thread and its resources are abandoned, and outcome() returns an error. The communicators cannot be used once the
// shutdown begins.
class Ending {
 public:
  // True if all communicators have been shut down or the deadline has passed.
  bool over() const;
  // True if the deadline passed before all communicators had been shut down.
  bool leaked() const;
  // Return ok, or the first error. Valid only after over() has returned true.
  Status outcome() const;
  // Sleep until over() returns true. Used by tests and at the exit of a process.
  void wait() const;

 private:
  friend std::shared_ptr<Ending> abort(std::span<const std::shared_ptr<Communicator>>, Status, double);
  friend std::shared_ptr<Ending> destroy(std::span<const std::shared_ptr<Communicator>>, double);
  enum class Method { abort, destroy };
  using Communicators = std::span<const std::shared_ptr<Communicator>>;
  static std::shared_ptr<Ending> start(Method method, Communicators communicators, Status why, double seconds);
  Ending(double seconds, std::string what) : deadline_(Deadline::after(seconds)), seconds_(seconds), what_(std::move(what)) {}
  static Status abort_all(Communicators communicators);
  static Status destroy_all(Communicators communicators);

  const Deadline deadline_;
  const double seconds_;
  const std::string what_;
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  // Result of the shutdown, guarded by mutex_.
  Status outcome_;
};

// Abort communicators after the loss of a rank. The owner must first mark their operations as failed, because their
// events will fire although the data are invalid. Communicators that are still being created, or destroyed while
// waiting for the lost rank, are aborted too. This works while NCCL waits for their kernels; once it frees them, they
// are abandoned. From NCCL 2.22 on, all communicators are aborted in one group, because they can only end together.
// Before 2.22, each is aborted on a separate thread. Every rank of the host must call this. `why` becomes the error of
// later calls on them.
std::shared_ptr<Ending> abort(std::span<const std::shared_ptr<Communicator>> communicators, Status why, double seconds);

// Destroy communicators when no rank has failed and nothing is in flight. This waits for enqueued work and for CUDA graphs that have
// captured operations. It also waits for the other ranks of the host, which must do the same in the same order. Communicators that are not
// ready are aborted.
std::shared_ptr<Ending> destroy(std::span<const std::shared_ptr<Communicator>> communicators, double seconds);

}  // namespace hvd::nccl
