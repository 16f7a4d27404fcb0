#include "engine/device/accelerator.h"

#include "devices/cuda/device.h"
#include "engine/execute.h"

namespace hvd {

Status Accelerator::open(const Place& place, std::shared_ptr<Device>* out) {
  std::lock_guard lock(mutex_);
  if (!device_) {
    HVD_RETURN_IF_ERROR(open_cuda_device(cuda_library_, place.ordinal, &device_));
    const Device::Turn turn(*device_);
    // Ignore a failure to load the kernels; the operations that need them report it.
    if (kernels_ && turn.status().ok()) static_cast<void>(device_->load_kernels());
  }
  if (device_->ordinal() != place.ordinal) {
    return Status(Code::invalid_argument, "the tensor must be on the device of this rank's earlier tensors, " + device_->description() +
                                              ", got one on " + std::string(name_of(place.kind)) + " " + std::to_string(place.ordinal) +
                                              ". Choose the device before the first collective, for instance with "
                                              "torch.cuda.set_device(hvd.local_rank())");
  }
  *out = device_;
  return {};
}

Status Accelerator::mark(const Place& place, Operation* op) {
  auto on = std::make_unique<OnDevice>();
  HVD_RETURN_IF_ERROR(open(place, &on->device));
  Device& device = *on->device;
  const Device::Turn turn(device);
  HVD_RETURN_IF_ERROR(turn.status());
  bool capturing = false;
  HVD_RETURN_IF_ERROR(device.capturing(place.stream, &capturing));
  if (capturing) {
    return Status(
        Code::invalid_argument,
        "the stream is being captured into a graph (torch.cuda.graph, or a framework that creates graphs by itself), which cannot "
        "contain a collective; call it outside the captured part");
  }
  HVD_RETURN_IF_ERROR(device.take_event(&on->ready));
  HVD_RETURN_IF_ERROR(device.record(on->ready, place.stream));
  op->request.device = place.kind;
  op->on_device = std::move(on);
  return {};
}

Status Accelerator::copy_output(const Operation& op, void* to, Device::Stream stream) {
  Device& device = *op.on_device->device;
  HVD_RETURN_IF_ERROR(outputs_.sweep());
  const Device::Turn turn(device);
  HVD_RETURN_IF_ERROR(turn.status());
  if (op.on_device->completion) HVD_RETURN_IF_ERROR(op.on_device->completion->order(stream));
  HVD_RETURN_IF_ERROR(device.copy(to, op.output->data(), op.output->bytes(), stream));
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(op.on_device->device, stream, &completion));
  outputs_.keep(std::move(completion), op.output);
  return {};
}

bool SingleRankPath::fits(const Response& r, const Comm& comm) {
  if (comm.size > 1) return false;
  return r.kind == Kind::broadcast || ((r.kind == Kind::allreduce || r.kind == Kind::reducescatter) && r.prescale == 1 && r.postscale == 1);
}

Status SingleRankPath::start(const Response& r, const std::vector<OperationPtr>& operations) {
  for (size_t i = 0; i < operations.size(); ++i) {
    Operation& op = *operations[i];
    const size_t bytes = elements_of(r.shapes[i]) * size_of(r.dtype);
    if (bytes == 0) continue;
    Device& device = *op.on_device->device;
    const Device::Turn turn(device);
    HVD_RETURN_IF_ERROR(turn.status());
    if (!stream_) HVD_RETURN_IF_ERROR(device.make_stream(&stream_));
    HVD_RETURN_IF_ERROR(device.wait(stream_, op.on_device->ready));
    if (op.in != op.out) HVD_RETURN_IF_ERROR(device.copy(op.out, op.in, bytes, stream_));
    // Record the completion even if the result stays in place: another stream that waits for the result must also wait for the program's
    // work before the operation.
    HVD_RETURN_IF_ERROR(Completion::record(op.on_device->device, stream_, &op.on_device->completion));
  }
  return {};
}

}  // namespace hvd
