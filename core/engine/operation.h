// Submitted operation with its request, its memory, and the handle that the caller waits on.
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

// Output of an allgather or alltoall. The engine allocates it, because only the engine knows its size.
class Output {
 public:
  // Allocate the output on the heap. Throws std::bad_alloc.
  explicit Output(size_t bytes);
  // Use existing memory as the output. `owner` keeps the memory alive.
  Output(std::shared_ptr<void> owner, std::byte* data, size_t bytes) : owner_(std::move(owner)), data_(data), bytes_(bytes) {}
  Output(const Output&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_;
  size_t bytes_;
};

// State of an operation whose tensor is on a device.
struct OnDevice {
  std::shared_ptr<Device> device;
  // Event that the caller has recorded on its stream. Once the device reaches it, the input is ready and the output can
  // be overwritten.
  Device::Event ready = nullptr;
  // Event that shows when the device has finished the operation. It is set when the work is launched; the operation is
  // then marked as done. It is also set if the operation fails while the device still uses its memory. Null if there
  // was nothing to do.
  std::shared_ptr<const Completion> completion;
  // Number that links this operation to the host-memory operations that carry it out, which store it in
  // Operation::carries. It is 0 until they are created.
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
  // Device state of the operation, or null if the CPU reads and writes `in`, `out` and `residual`.
  std::unique_ptr<OnDevice> on_device;
  // Quantization residual, which is added to the next contribution (collectives/collectives.h). If null, the
  // quantization error is discarded.
  float* residual = nullptr;
  // Position of the operation in this rank's order of submission.
  uint64_t sequence = 0;
  // Number that gives an unnamed operation its name if the operation has to be negotiated.
  uint64_t unnamed_number = 0;
  // Nonzero for the engine's own host-memory operations that carry out a device operation
  // (engine/device/host_staged_path.h). Submissions does not overwrite the fence in their request.
  uint64_t carries = 0;
  Clock::time_point submitted{};
  // Time at which the operation was first requested.
  Clock::time_point requested{};
  // Time in nanoseconds at which a caller first polled or waited, or 0 if none has.
  std::atomic<int64_t> first_poll{0};
  // True once a caller blocks on the operation. From then on, requests are sent without batching.
  std::atomic<bool> awaited{false};
  // Callback that replaces a waiting caller. It is called once, when the operation is done, on the thread that runs the
  // progress loop. It can submit operations but must not wait.
  void (*on_done)(Operation& op, void* context) = nullptr;
  void* context = nullptr;

  // Time of the last submission (base/ticks.h), set if an observer needs it.
  uint64_t submitted_ticks = 0;

  // Results of the operation, valid once it is done.
  std::vector<int64_t> sizes;
  std::shared_ptr<Output> output;
  // Function that allocates outputs, or returns null if there is not enough memory. If the function is empty, outputs
  // are allocated on the heap.
  std::function<std::shared_ptr<Output>(size_t bytes)> outputs;

  // The fields from `schedule` to `held` belong to Submissions and are guarded by its lock. `schedule` is the id of the
  // schedule that contains the request, or 0, and `entry` is the request's index in it. `held` keeps the operation
  // alive while the schedule stores a pointer to it.
  uint64_t schedule = 0;
  uint32_t entry = 0;
  // True while a schedule uses the operation's name: from the time the operation is offered to the schedule until
  // Submissions::release().
  bool scheduled = false;
  std::shared_ptr<Operation> held;

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  const Status& status() const { return status_; }
  // Mark the operation as done, wake its waiters, and call on_done.
  void complete(Status status);
  // Allocate the output of the operation. Throws std::bad_alloc.
  void make_output(size_t bytes);
  // Make a completed operation pending again with the same request. The caller must hold the only reference.
  void reuse();
  // Sleep until the operation is done or `deadline` passes. Return true if it is done.
  bool sleep_until(Deadline deadline);

 private:
  static constexpr uint32_t kPending = 0, kSleepers = 1, kDone = 2;
  std::atomic<uint32_t> state_{kPending};
  Status status_;
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace hvd
