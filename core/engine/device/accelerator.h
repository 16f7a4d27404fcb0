// The one device that this rank works on, found when the first tensor of it is submitted.
#pragma once
#include <memory>
#include <mutex>
#include <string>

#include "devices/device.h"
#include "engine/device/held.h"
#include "engine/operation.h"

namespace hvd {

// Where a tensor is, and the stream on which the caller has put it there.
struct Place {
  DeviceKind kind = DeviceKind::host;
  int ordinal = 0;
  Device::Stream stream = nullptr;
};

class Accelerator {
 public:
  // `kernels`: ours may be launched. They are made ready with the device, since others wait later, with deadlines, and a driver that has to
  // compile them takes seconds.
  Accelerator(std::string cuda_library, bool kernels) : cuda_library_(std::move(cuda_library)), kernels_(kernels) {}

  // On the caller's thread: marks on its stream what the operation has to wait for. An error says why the tensor cannot be worked on: no
  // device, another one than so far, a stream that is being captured.
  Status mark(const Place& place, Operation* op);
  // Copies the output of a done operation to the device's memory, behind what is on `stream`; it stays until that has happened.
  Status copy_output(const Operation& op, void* to, Device::Stream stream);

 private:
  Status open(const Place& place, std::shared_ptr<Device>* out);

  const std::string cuda_library_;
  const bool kernels_;
  std::mutex mutex_;
  std::shared_ptr<Device> device_;
  Held outputs_;
};

}  // namespace hvd
