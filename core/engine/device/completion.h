// What an operation on a device leaves behind once it is launched: the place on the device's time line behind which its result is there.
// The host waits for the launch only; the caller's stream waits for this.
#pragma once
#include <atomic>
#include <memory>

#include "devices/device.h"

namespace hvd {

class Completion {
 public:
  // `event`: recorded behind the work. Goes back to the device's pool with this.
  Completion(std::shared_ptr<Device> device, Device::Event event) : device_(std::move(device)), event_(event) {}
  // Records an event behind what is on `stream` now. Needs a Turn on the device.
  static Status record(const std::shared_ptr<Device>& device, Device::Stream stream, std::shared_ptr<const Completion>* out) {
    Device::Event event = nullptr;
    HVD_RETURN_IF_ERROR(device->take_event(&event));
    *out = std::make_shared<const Completion>(device, event);
    return device->record(event, stream);
  }
  ~Completion() { device_->give_back(event_); }
  Completion(const Completion&) = delete;

  // What comes later on `stream` waits for the result. Any thread; the host does not wait.
  Status order(Device::Stream stream) const {
    HVD_RETURN_IF_ERROR(failure());
    const Device::Turn turn(*device_);
    HVD_RETURN_IF_ERROR(turn.status());
    return device_->wait(stream, event_);
  }
  // Is the result there? An error: the device has failed, or the operation after it was launched, and the result will never be there.
  Status reached(bool* out) const {
    HVD_RETURN_IF_ERROR(failure());
    HVD_RETURN_IF_ERROR(passed(out));
    return *out ? failure() : Status();
  }
  // Is the device past it, so that it uses the operation's memory no more? Also of one that has failed: what was launched goes on until it
  // ends or is aborted. An error: nobody can say.
  Status passed(bool* out) const {
    const Device::Turn turn(*device_);
    HVD_RETURN_IF_ERROR(turn.status());
    return device_->reached(event_, out);
  }
  // The result will not come, whatever the event says. Called once, before what makes it fire.
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

}  // namespace hvd
