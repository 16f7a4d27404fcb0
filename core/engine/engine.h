// Engine: one epoch of membership, for callers. It owns the thread that drives it, the baton that says who drives (engine/baton.h), the
// alarm that wakes the thread and the lookout for operations that nobody waits for.
#pragma once
#include <memory>
#include <mutex>
#include <thread>

#include "engine/alarm.h"
#include "engine/baton.h"
#include "engine/counters.h"
#include "engine/device/accelerator.h"
#include "engine/driver.h"
#include "engine/lookout.h"
#include "engine/operation.h"
#include "engine/options.h"
#include "engine/surrender.h"
#include "engine/waits.h"
#include "transport/arena.h"

namespace hvd {

class Engine {
 public:
  // `options` as check() accepts them.
  explicit Engine(EngineOptions options);
  ~Engine();  // shutdown() if that has not happened
  Engine(const Engine&) = delete;

  // Announces an operation; returns at once. in, out: see Request::kind in the Python contract (horovod/_core.pyi). The memory stays
  // the caller's and must live until the operation is done.
  // residual: for a request with a wire format, as many float32 that carry what coding loses to the next call, or null.
  // place: null for memory that the CPU reads. On a device the operation begins behind what the stream has to do, and is done when its own
  // work there is launched; its memory must live until OnDevice::completion is reached, or until what frees it comes behind that.
  Status submit(Request request, const std::byte* in, std::byte* out, OperationPtr* op, float* residual = nullptr,
                const Place* place = nullptr);
  // submit() for a caller that never waits: `on_done` is called with the operation and `context` once it is done, by whoever drives the
  // engine, perhaps before this returns. It may submit; it must not wait.
  Status submit_unattended(Request request, const std::byte* in, std::byte* out, void (*on_done)(Operation&, void*), void* context);
  // submit() by a caller that will wait at once: the engine's thread is left asleep, the caller drives.
  Status submit_blocking(Request request, const std::byte* in, std::byte* out, OperationPtr* op, float* residual = nullptr,
                         const Place* place = nullptr);
  // Of a done operation on a device, see Accelerator.
  Status copy_output(const Operation& op, void* to, Device::Stream stream) { return accelerator_.copy_output(op, to, stream); }
  // Submits the request of a done operation anew, with other memory and without a residual. `op` becomes the new
  // operation, which is the same object if nobody else holds it. `blocking`: as in submit_blocking().
  Status submit_again(OperationPtr* op, const std::byte* in, std::byte* out, bool blocking);
  // Until done or `deadline`; true when done.
  bool wait(Operation& op, Deadline deadline);
  bool poll(Operation& op);

  // Leaves the job: the peers hear `reason`, pending operations fail, the thread ends, descriptors are closed. May be repeated.
  void shutdown(const std::string& reason);
  // The job is over, as somebody outside knows: what is pending fails with `why`, here and where the peers can be told. Any thread; it does
  // not wait. No effect once the job has ended.
  void give_up(Status why);
  bool running() const { return driver_ != nullptr; }
  // Why operations are refused, with the rank that is the reason where there is one; ok while they are not.
  Status ended() const { return submissions_.ended(); }
  // How many operations the end has made fail so far: those that were under way, and those that were refused. Outlives the engine.
  std::shared_ptr<const std::atomic<uint64_t>> failures() const { return submissions_.failures(); }
  // In a forked child, where nothing else may be called any more and the engine must not be destroyed.
  void abandon_in_child();

  // Zeroed memory in this rank's arena, see Arena; null when there is none, or no more. An allreduce in place of tensors that all members
  // of a set on one node keep in such memory needs no staging.
  std::shared_ptr<Arena::Block> allocate(size_t bytes) { return arena_->allocate(bytes); }

  // Of an unnamed group that is about to be submitted (Submissions::name_group).
  std::string name_group(uint32_t set, uint8_t face, Kind kind) { return submissions_.name_group(set, face, kind); }

  std::map<uint32_t, std::vector<int>> process_sets() const { return submissions_.sets(); }
  // What has happened so far, and what memory and links say of themselves.
  struct Stats : Counted {
    uint64_t unstaged_bytes = 0, arena_bytes = 0, wire_bytes = 0, scratch_bytes = 0;
    ControlTraffic::Read control_sent{}, control_received{};
  };
  Stats stats() const;
  // Who listens to this engine, see Observer. Any thread.
  Observers& observers() { return observers_; }
  // How long callers were blocked in wait().
  std::shared_ptr<const Waits> waits() const { return waits_; }
  // For observers of other ranks, or who waits (Notes). Any thread; False as Notes::leave() says.
  bool leave_note(Note note);
  void ask_who_waits();
  void set_report(std::string where) { notes_.set_report(std::move(where)); }

 private:
  void run(int cpu);
  Status enqueue(const OperationPtr& op, bool* wake);
  Status accept(Request request, const std::byte* in, std::byte* out, OperationPtr* op, float* residual, const Place* place, bool ring);
  Stats read_stats() const;

  Accelerator accelerator_;
  Submissions submissions_;
  Observers observers_;
  Notes notes_;
  Surrender surrender_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  const std::shared_ptr<Waits> waits_ = std::make_shared<Waits>();
  std::unique_ptr<Driver> driver_;  // touched only with the baton
  Stats last_stats_{};
  std::shared_ptr<Arena> arena_;
  Alarm alarm_;
  Lookout lookout_;
  std::unique_ptr<Baton> baton_;
  std::vector<int> fds_;              // all descriptors of the engine, for abandon_in_child()
  bool abandoned_ = false;
  mutable std::mutex shutdown_mutex_;
  std::thread thread_;
};

}  // namespace hvd
