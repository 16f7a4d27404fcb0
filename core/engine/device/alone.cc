#include "engine/device/alone.h"

#include "engine/execute.h"

namespace hvd {

bool Alone::fits(const Response& r, const Comm& comm) {
  if (comm.size > 1) return false;
  return r.kind == Kind::broadcast || ((r.kind == Kind::allreduce || r.kind == Kind::reducescatter) && r.prescale == 1 && r.postscale == 1);
}

Status Alone::start(const Response& r, const std::vector<OperationPtr>& operations) {
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
    // Also for a result that stays in place: another stream that waits for it must wait for the program's earlier work.
    HVD_RETURN_IF_ERROR(Completion::record(op.on_device->device, stream_, &op.on_device->completion));
  }
  return {};
}

}  // namespace hvd
