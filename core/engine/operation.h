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
  // Event on the caller's stream. Once the device has reached it, the input is ready and the output can be overwritten.
  Device::Event ready = nullptr;
  // Completion of the work on the device, or null if there is none. Set when the work is launched, which is when the operation is done, or
  // when the operation fails while the device still uses its memory.
  std::shared_ptr<const Completion> completion;
  // Number that links this operation to the host operations that carry it out, which have it in Operation::carries. 0 until they are
  // created.
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
  // State on the device, or null if the tensors are in host memory.
  std::unique_ptr<OnDevice> on_device;
  // Quantization residual, which is added to the next contribution (collectives/collectives.h). If null, the
  // quantization error is discarded.
  float* residual = nullptr;
  // Position of the operation in this rank's order of submission.
  uint64_t sequence = 0;
  // Number in the generated name of an unnamed operation, used if the operation is negotiated.
  uint64_t unnamed_number = 0;
  // Number that links this host operation to the device operation that it carries out (engine/device/host_staged_path.h), or 0. The fence
  // of such an operation is not overwritten.
  uint64_t carries = 0;
  Clock::time_point submitted{};
  // Time at which the operation was first requested.
  Clock::time_point requested{};
  // Time in nanoseconds at which a caller first polled or waited, or 0 if none has.
  std::atomic<int64_t> first_poll{0};
  // True once a caller blocks on the operation. From then on, requests are sent without batching.
  std::atomic<bool> awaited{false};
  // Callback for a caller that does not wait. It is called once, when the operation is done, on the thread that runs the progress loop. It
  // can submit operations but must not wait.
  void (*on_done)(Operation& op, void* context) = nullptr;
  void* context = nullptr;

  // Time of the last submission (base/ticks.h), set if an observer needs it.
  uint64_t submitted_ticks = 0;

  // Results of the operation, valid once it is done.
  std::vector<int64_t> sizes;
  std::shared_ptr<Output> output;
  // Function that allocates the output, or returns null if memory is short. Without a function, the output is allocated on the heap.
  std::function<std::shared_ptr<Output>(size_t bytes)> outputs;

  // The fields from `schedule` to `held` belong to Submissions and are guarded by its lock. `schedule` is the id of the schedule that
  // contains the request, or 0, and `entry` its index there. `held` keeps the operation alive while the schedule stores a pointer to it.
  uint64_t schedule = 0;
  uint32_t entry = 0;
  // True while a schedule uses the operation's name: from its submission to the schedule until Submissions::release().
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
