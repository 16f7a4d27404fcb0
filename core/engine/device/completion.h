// Completion of a launched device operation. It is signaled by an event that the device reaches when the result is
// ready. The host waits only for the launch; the caller's stream waits for the event.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "devices/device.h"

namespace hvd {

class Completion {
 public:
  // `event` must have been recorded after the operation's work. The destructor returns the event to the device's pool.
  Completion(std::shared_ptr<Device> device, Device::Event event) : device_(std::move(device)), event_(event) {}
  // Record an event after the current work on `stream`. The caller must have entered the device with a Device::Turn.
  static Status record(const std::shared_ptr<Device>& device, Device::Stream stream, std::shared_ptr<const Completion>* out) {
    Device::Event event = nullptr;
    HVD_RETURN_IF_ERROR(device->take_event(&event));
    *out = std::make_shared<const Completion>(device, event);
    return device->record(event, stream);
  }
  ~Completion() { device_->give_back(event_); }
  Completion(const Completion&) = delete;

  // Make later work on `stream` wait for the result without blocking the host. Callable from any thread.
  Status order(Device::Stream stream) const {
    HVD_RETURN_IF_ERROR(failure());
    const Device::Turn turn(*device_);
    HVD_RETURN_IF_ERROR(turn.status());
    return device_->wait(stream, event_);
  }
  // Set `out` to true if the result is ready. An error means that the device or the operation has failed, so the result
  // will never be ready.
  Status reached(bool* out) const {
    HVD_RETURN_IF_ERROR(failure());
    HVD_RETURN_IF_ERROR(passed(out));
    return *out ? failure() : Status();
  }
  // Set `out` to true if the device has reached the event and no longer uses the operation's memory. This also holds for a failed
  // operation, whose launched work runs until it ends or is aborted. An error means that the state is unknown.
  Status passed(bool* out) const {
    const Device::Turn turn(*device_);
    HVD_RETURN_IF_ERROR(turn.status());
    return device_->reached(event_, out);
  }
  // Mark the result as failed, whether or not the device reaches the event. Call this once, before anything that lets the device reach it.
  void fail(Status why) const {
    why_ = std::move(why);
    failed_.store(true, std::memory_order_release);
  }

 private:
  Status failure() const { return failed_.load(std::memory_order_acquire) ? why_ : Status(); }

  const std::shared_ptr<Device> device_;
  const Device::Event event_;
  mutable std::atomic<bool> failed_{false};
  mutable Status why_;
};

// Leak memory that the device might still use, because there is no completion to wait for. Leak checkers see the memory as reachable.
void leave_behind(std::shared_ptr<void> memory);

class DeferredRelease {
 public:
  // Keep `memory` alive until the device has reached the event of `until`. Callable from any thread.
  void keep(std::shared_ptr<const Completion> until, std::shared_ptr<void> memory);
  // Release memory that the device no longer uses, oldest first. An error means that the device has failed.
  Status sweep();
  // Call sweep() repeatedly until all memory is released, for at most a few seconds. Memory that is still in use after
  // that is never freed. After a device failure, no memory is freed.
  ~DeferredRelease();

 private:
  std::mutex mutex_;
  std::deque<std::pair<std::shared_ptr<const Completion>, std::shared_ptr<void>>> kept_;
};

// Completions of launched operations whose results callers can still request. If the job ends with an error, all
// completions that are not ready are marked as failed, regardless of their events.
class PendingCompletions {
 public:
  // Add the completion of an operation to those that fail() marks. `what` describes the operation in error messages.
  void add(const std::shared_ptr<const Completion>& completion, std::string what);
  void fail(const Status& why);

 private:
  // Launched operations with their descriptions, including some that have already completed.
  std::deque<std::pair<std::weak_ptr<const Completion>, std::string>> launched_;
};

}  // namespace hvd
