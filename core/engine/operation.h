// One submitted operation: its request, its memory, and the handle that the caller waits on.
#pragma once
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "agree/request.h"
#include "base/deadline.h"
#include "base/status.h"
#include "engine/device/completion.h"

namespace hvd {

// Output whose size only the engine knows (allgather, alltoall).
class Output {
 public:
  // Allocate on the heap; throws std::bad_alloc.
  explicit Output(size_t bytes);
  // Use memory that `owner` keeps alive.
  Output(std::shared_ptr<void> owner, std::byte* data, size_t bytes) : owner_(std::move(owner)), data_(data), bytes_(bytes) {}
  Output(const Output&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_;
  size_t bytes_;
};

// Device-side state of an operation whose tensor is on a device.
struct OnDevice {
  std::shared_ptr<Device> device;
  Device::Event ready = nullptr;  // Recorded by the caller on its stream: the input is ready and the output is free.
  // Set once the operation is done, which here means launched, or has failed while the device still uses its memory.
  // Null if there was nothing to do.
  std::shared_ptr<const Completion> completion;
  // Value of Operation::carries of the host operations that execute this one; 0: none so far.
  std::atomic<uint64_t> carried{0};
  ~OnDevice() {
    if (ready) device->give_back(ready);
  }
};

class Operation {
 public:
  Request request;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::unique_ptr<OnDevice> on_device;  // null: the CPU reads and writes `in`, `out` and `residual`.
  // Wire format: coding error carried to the next call, see collectives/collectives.h; null: dropped.
  float* residual = nullptr;
  uint64_t sequence = 0;  // Order of submission on this rank.
  uint64_t unnamed_number = 0;  // Becomes the name if the operation has to be negotiated.
  // Not 0 for the engine's own operations on host memory that execute a device operation (engine/device/host_staged_path.h).
  // These keep their request's fence.
  uint64_t carries = 0;
  Clock::time_point submitted{};
  Clock::time_point requested{};  // Time of the first request.
  std::atomic<int64_t> first_poll{0};  // When a caller first polled or waited, in ns; 0: never.
  std::atomic<bool> awaited{false};  // A caller blocks on it, so stop batching.
  // Callback that replaces a waiting caller: called once when done, on the thread that drives the engine. It may submit
  // but must not wait.
  void (*on_done)(Operation& op, void* context) = nullptr;
  void* context = nullptr;

  uint64_t submitted_ticks = 0;  // base/ticks.h: last submission while an observer wanted the time

  // Results; valid once done.
  std::vector<int64_t> sizes;
  std::shared_ptr<Output> output;
  // Allocates outputs; empty: use the heap. Returns null if there is not enough memory.
  std::function<std::shared_ptr<Output>(size_t bytes)> outputs;

  // Owned by Submissions, guarded by its lock: the schedule in which this request is known as `entry` (0: none), and
  // the reference that keeps the operation alive while the schedule, not the driver, holds it.
  uint64_t schedule = 0;
  uint32_t entry = 0;
  bool scheduled = false;  // the schedule tracks its name, from being offered until release()
  std::shared_ptr<Operation> held;

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  const Status& status() const { return status_; }
  // Mark the operation as done, wake its waiters and call on_done.
  void complete(Status status);
  // Allocate `output`. Throws std::bad_alloc.
  void make_output(size_t bytes);
  // Make a done operation pending again, with the same request. The caller must hold the only reference.
  void reuse();
  // Sleep until done or `deadline`. Return true if done.
  bool sleep_until(Deadline deadline);

 private:
  static constexpr uint32_t kPending = 0, kSleepers = 1, kDone = 2;
  std::atomic<uint32_t> state_{kPending};
  Status status_;
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace hvd
