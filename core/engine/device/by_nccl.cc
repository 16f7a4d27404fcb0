#include "engine/device/by_nccl.h"

#include "engine/execute.h"

namespace hvd {
namespace {

// Compressed values and reductions across hosts need the host. On this path a rank that has joined contributes zeros.
bool fits(const Response& r) {
  return r.kind != Kind::allreduce || (r.wire == WireFormat::none && !r.across_hosts && !(r.partial && needs_neutral(r)));
}

}  // namespace

Status ByNccl::asks(const Response& r, Comm& comm, const std::shared_ptr<Device>& device, bool* yes) {
  if (device && !device_) device_ = device;
  HVD_RETURN_IF_ERROR(sets_.find(r.set, comm, device, &set_));
  *yes = set_ && fits(r) && kinds_[static_cast<size_t>(r.kind)];
  if (!*yes || (r.kind != Kind::allreduce && r.kind != Kind::reducescatter)) return {};
  const nccl::Reduction how = reduction(*set_, r, comm);
  // Our kernels do what NCCL cannot: in the results, and also before the reduction if the results are large enough to
  // hold the inputs.
  const bool before = how.before.identity() || (set_->kernels && r.kind == Kind::allreduce);
  *yes = how.possible() && before && (how.after.identity() || set_->kernels);
  return {};
}

Status ByNccl::start(const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  const Device::Turn turn(*device_);
  Status status = turn.status();
  if (status.ok()) status = launch(*set_, r, comm, operations);
  // Even after a failure part of it may be in flight.
  if (turn.status().ok()) {
    const Status remembered = remember(described(r), operations);
    if (status.ok()) status = remembered;
  }
  return status.ok() ? status : status.with(device_->description());
}

Status ByNccl::remember(std::string what, const std::vector<OperationPtr>& operations) {
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(device_, stream(), &completion));
  for (const OperationPtr& op : operations) op->on_device->completion = completion;
  launched_.add(std::move(completion), std::move(what));
  return {};
}

Status ByNccl::look() { return launched_.empty() ? Status() : launched_.look(sets_).with(device_->description()); }

void ByNccl::end(const Status& why, bool all_take_part) {
  if (why.code() == Code::shutdown && all_take_part) {
    sets_.end({});
  } else {
    launched_.fail(why);
    sets_.end(why);
  }
  launched_.clear();
}

}  // namespace hvd
