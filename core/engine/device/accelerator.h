// Device of this rank, opened when the first device tensor is submitted. A rank uses only one device.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/device_kind.h"
#include "collectives/comm.h"
#include "devices/device.h"
#include "engine/device/completion.h"
#include "engine/operation.h"

namespace hvd {

// Device that holds a tensor, and the stream on which the caller computes it.
struct Place {
  DeviceKind kind = DeviceKind::host;
  int ordinal = 0;
  Device::Stream stream = nullptr;
};

class Accelerator {
 public:
  // `kernels` is true if the engine can launch its own kernels. They are then loaded when the device is opened. A driver can take seconds
  // to compile them, which would later exceed the timeouts of waiting ranks.
  Accelerator(std::string cuda_library, bool kernels) : cuda_library_(std::move(cuda_library)), kernels_(kernels) {}

  // Record an event on the caller's stream, for which the operation must wait. Call this on the caller's thread. An error explains why the
  // tensor cannot be used: no device is available, an earlier tensor was on another device, or the stream is being captured.
  Status mark(const Place& place, Operation* op);
  // Copy the output of a completed operation to device memory, in stream order. The output stays alive until the copy
  // is done.
  Status copy_output(const Operation& op, void* to, Device::Stream stream);

 private:
  Status open(const Place& place, std::shared_ptr<Device>* out);

  const std::string cuda_library_;
  const bool kernels_;
  std::mutex mutex_;
  std::shared_ptr<Device> device_;
  DeferredRelease outputs_;
};

// Path for device operations in a process set with a single rank. They need no communication.
class SingleRankPath {
 public:
  // True if the result of the operation equals its input, so that no communication is needed.
  static bool fits(const Response& response, const Comm& comm);
  // Copy the input to the output unless they share memory, and record the completion.
  Status start(const Response& response, const std::vector<OperationPtr>& operations);

 private:
  Device::Stream stream_ = nullptr;
};

}  // namespace hvd
