// Engine for one epoch, that is, for a fixed set of ranks. Programs submit operations to it and wait for them. It owns the thread that runs
// the progress loop, and the lock that decides which thread runs the loop (engine/progress_lock.h). It also owns the waker of that thread,
// and the watchdog for operations that no caller waits for.
#pragma once
#include <memory>
#include <mutex>
#include <thread>

#include "engine/counters.h"
#include "engine/device/accelerator.h"
#include "engine/driver.h"
#include "engine/operation.h"
#include "engine/options.h"
#include "engine/progress_lock.h"
#include "engine/shutdown_state.h"
#include "engine/thread_waker.h"
#include "engine/waits.h"
#include "transport/arena.h"

namespace hvd {

class Engine {
 public:
  // `options` must have passed check().
  explicit Engine(EngineOptions options);
  // The destructor calls shutdown() unless the program has already done so.
  ~Engine();
  Engine(const Engine&) = delete;

  // Submit an operation and return. Request::kind in the Python contract (src/horovod/_core.pyi) describes `in` and `out`. The caller keeps
  // ownership of the memory, which must live until the operation is done. `residual` is only for requests with a wire format: one float32
  // per element that carries the quantization error to the next call, or null. `place` is null for host memory. On a device, the operation
  // starts after the work already on the caller's stream, and is done once its own work is launched. Device memory must live until
  // OnDevice::completion is reached, or be freed in stream order after it.
  Status submit(Request request, const std::byte* in, std::byte* out, OperationPtr* op, float* residual = nullptr,
                const Place* place = nullptr);
  // Submit an operation for a caller that never waits. When the operation is done, `on_done` is called once, with the
  // operation and `context`, on the thread that runs the progress loop. This can happen before this function returns.
  // `on_done` can submit operations but must not wait.
  Status submit_unattended(Request request, const std::byte* in, std::byte* out, void (*on_done)(Operation&, void*), void* context);
  // Submit an operation for a caller that will wait for it immediately. The caller then runs the progress loop, so the engine's thread is
  // not woken.
  Status submit_blocking(Request request, const std::byte* in, std::byte* out, OperationPtr* op, float* residual = nullptr,
                         const Place* place = nullptr);
  // Copy the output of a completed device operation; see Accelerator::copy_output().
  Status copy_output(const Operation& op, void* to, Device::Stream stream) { return accelerator_.copy_output(op, to, stream); }
  // Submit the request of a completed operation again, with other buffers and without a residual. `op` becomes the new operation, in the
  // same object if the caller holds the only reference. `blocking` means that the caller waits immediately, as in submit_blocking().
  Status submit_again(OperationPtr* op, const std::byte* in, std::byte* out, bool blocking);
  // Run the progress loop for a caller that waits for the operation. Return true if the operation is done. Return false when the caller
  // should sleep because that is cheaper; the engine's thread then runs the loop.
  bool drive(Operation& op, Deadline deadline = Deadline::at(Clock::time_point::max()));
  // Wait until the operation is done or `deadline` passes. Return true if it is done.
  bool wait(Operation& op, Deadline deadline);
  // True if the operation is done. If a caller polls for long, the engine checks whether the operation can still complete in the running
  // schedule, as for a waiting caller (Submissions::nudge()).
  bool poll(Operation& op);

  // Leave the job: send `reason` to the peers, fail pending operations, stop the thread and close the descriptors. Can
  // be called repeatedly.
  void shutdown(const std::string& reason);
  // End the job at the request of the launcher or other code outside the engine. Pending operations fail with `why` on this rank and on
  // every peer that can be reached. Callable from any thread. Does not wait. Has no effect once the job has ended.
  void give_up(Status why);
  // Change the fusion threshold and the size thresholds of all ranks (see Driver::retune). Callable from any thread,
  // but only on rank 0. Does not wait.
  void retune(size_t fusion_threshold, const Tuning& tuning) {
    std::lock_guard once(shutdown_mutex_);
    if (driver_) driver_->retune(fusion_threshold, tuning);
  }
  bool running() const { return driver_ != nullptr; }
  // Return ok while operations are accepted. After the end of the job, return the reason why they are rejected, with the rank that caused
  // it, if any.
  Status ended() const { return submissions_.ended(); }
  // Return the number of operations that failed or were rejected because the engine shut down. The counter outlives the
  // engine.
  std::shared_ptr<const std::atomic<uint64_t>> failures() const { return submissions_.failures(); }
  // Close the inherited descriptors in a forked child. Afterwards, the engine must not be used or destroyed.
  void abandon_in_child();

  // Allocate zeroed memory in this rank's arena (see Arena). Return null if there is no arena or it is full. If all
  // ranks of the set are on one node and keep their tensors in arenas, an in-place allreduce needs no staging.
  std::shared_ptr<Arena::Block> allocate(size_t bytes) { return arena_->allocate(bytes); }

  // Return the name for an unnamed group that is about to be submitted (see Submissions::name_group).
  std::string name_group(uint32_t set, uint8_t frontend, Kind kind) { return submissions_.name_group(set, frontend, kind); }

  std::map<uint32_t, std::vector<int>> process_sets() const { return submissions_.sets(); }
  // Counters of the engine, and statistics of its memory and links.
  struct Stats : Counted {
    uint64_t unstaged_bytes = 0, arena_bytes = 0, wire_bytes = 0, scratch_bytes = 0;
    ControlTraffic::Read control_sent{}, control_received{};
  };
  Stats stats() const;
  // Return the observers of this engine. Callable from any thread.
  Observers& observers() { return observers_; }
  // Return the meter of the time for which callers are blocked in wait().
  std::shared_ptr<const Waits> waits() const { return waits_; }
  // Send a message to observers of other ranks. Return false if it is too long or too many messages are queued.
  // Callable from any thread.
  bool post_message(ObserverMessage message);
  void ask_who_waits();
  void set_report(std::string where) { message_bus_.set_report(std::move(where)); }

 private:
  void run(int cpu);
  Status enqueue(const OperationPtr& op, bool* wake);
  Status accept(Request request, const std::byte* in, std::byte* out, OperationPtr* op, float* residual, const Place* place, bool ring);
  Stats read_stats() const;

  Accelerator accelerator_;
  Submissions submissions_;
  Observers observers_;
  MessageBus message_bus_;
  AbortRequest abort_request_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  const std::shared_ptr<Waits> waits_ = std::make_shared<Waits>();
  // The following members are accessed only while holding the progress lock.
  std::unique_ptr<Driver> driver_;
  Stats last_stats_{};
  std::shared_ptr<Arena> arena_;
  ThreadWaker waker_;
  Watchdog watchdog_;
  std::unique_ptr<ProgressLock> progress_lock_;
  // All descriptors of the engine. abandon_in_child() closes them.
  std::vector<int> fds_;
  bool abandoned_ = false;
  mutable std::mutex shutdown_mutex_;
  std::thread thread_;
};

}  // namespace hvd
