// One submitted operation: what was asked, where its memory is, and the handle that its caller waits on.
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

// Output that only the engine can size (allgather, alltoall).
class Output {
 public:
  // On the heap; throws std::bad_alloc.
  explicit Output(size_t bytes);
  // In memory that `owner` keeps.
  Output(std::shared_ptr<void> owner, std::byte* data, size_t bytes) : owner_(std::move(owner)), data_(data), bytes_(bytes) {}
  Output(const Output&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_;
  size_t bytes_;
};

// Of an operation whose tensor is on a device.
struct OnDevice {
  std::shared_ptr<Device> device;
  Device::Event ready = nullptr;           // recorded by the caller on its stream: the input is there, and the output is free
  // Once the operation is done, which here means launched, or has failed while the device uses its memory; null if nothing was to be done.
  std::shared_ptr<const Completion> completion;
  std::atomic<uint64_t> carried{0};  // by the operations with this number as Operation::carries; 0: by none so far
  ~OnDevice() {
    if (ready) device->give_back(ready);
  }
};

class Operation {
 public:
  Request request;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::unique_ptr<OnDevice> on_device;  // null: `in`, `out` and `residual` are memory that the CPU reads and writes
  float* residual = nullptr;  // wire format: what coding loses, see collectives/collectives.h; null: it is lost
  uint64_t sequence = 0;  // order of submission on this rank
  uint64_t unnamed_number = 0;  // becomes the name if it has to be announced
  // Not 0: the engine's own, on host memory, for operations on a device (engine/device/staged.h). Keeps its request's fence.
  uint64_t carries = 0;
  Clock::time_point submitted{};
  Clock::time_point announced{};  // for the first time
  std::atomic<int64_t> first_poll{0};  // since when callers ask for it, by polling or waiting: nanoseconds; 0: never
  std::atomic<bool> awaited{false};  // somebody blocks on it: batch no longer
  // Instead of a caller that waits: called once when done, by whoever drives the engine. It may submit, it must not wait.
  void (*on_done)(Operation& op, void* context) = nullptr;
  void* context = nullptr;

  uint64_t submitted_ticks = 0;  // for observers that want it (base/ticks.h): when it was last submitted while one did

  // Results; valid once done.
  std::vector<int64_t> sizes;
  std::shared_ptr<Output> output;
  // Where outputs come from; empty: the heap. Null pointer: there is not enough memory.
  std::function<std::shared_ptr<Output>(size_t bytes)> outputs;

  // Of Submissions, under its lock. The schedule that knows this operation's request as its `entry` (0: none), and, while a schedule
  // and not the driver has the operation, what keeps it alive.
  uint64_t schedule = 0;
  uint32_t entry = 0;
  bool scheduled = false;  // its name is the schedule's business: from being offered until release()
  std::shared_ptr<Operation> held;

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  const Status& status() const { return status_; }
  void complete(Status status);
  // Throws std::bad_alloc.
  void make_output(size_t bytes);
  // Makes a done operation pending again, with the same request. Nobody else may know it.
  void reuse();
  // Sleeps until done or `deadline`; true when done.
  bool sleep_until(Deadline deadline);

 private:
  static constexpr uint32_t kPending = 0, kSleepers = 1, kDone = 2;
  std::atomic<uint32_t> state_{kPending};
  Status status_;
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace hvd
