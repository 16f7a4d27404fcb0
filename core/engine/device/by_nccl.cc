#include "engine/device/by_nccl.h"

#include <algorithm>

namespace hvd {
namespace {

// Coded values are the host's, and so are parts of a reduction that hosts have begun.
bool fits(const Response& r) { return r.kind != Kind::allreduce || (r.wire == WireFormat::none && !r.across_hosts); }

}  // namespace

Status ByNccl::asks(const Response& r, Comm& comm, const std::shared_ptr<Device>& device, bool* yes) {
  if (device && !device_) device_ = device;
  HVD_RETURN_IF_ERROR(sets_.find(r.set, comm, device, &set_));
  *yes = set_ && fits(r) && kinds_[static_cast<size_t>(r.kind)];
  if (!*yes || (r.kind != Kind::allreduce && r.kind != Kind::reducescatter)) return {};
  const nccl::Reduction how = reduction(*set_, r, comm);
  // What NCCL leaves to us our kernels do, in the results and, where these are large enough for the inputs, before.
  const bool before = how.before.identity() || (set_->kernels && r.kind == Kind::allreduce);
  *yes = how.possible() && before && (how.after.identity() || set_->kernels);
  return {};
}

Status ByNccl::start(const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  const Device::Turn turn(*device_);
  Status status = turn.status();
  if (status.ok()) status = launch(*set_, r, comm, operations);
  // Where it fails a part may be under way.
  if (turn.status().ok()) {
    const Status remembered = remember(std::string(name_of(r.kind)) + " '" + r.names.front() + "'", operations);
    if (status.ok()) status = remembered;
  }
  return status.ok() ? status : status.with(device_->description());
}

Status ByNccl::remember(const std::string& what, const std::vector<OperationPtr>& operations) {
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(device_, stream(), &completion));
  for (const OperationPtr& op : operations) op->on_device->completion = completion;
  constexpr size_t kMany = 64;
  if (launched_.size() >= kMany) static_cast<void>(sweep());  // each has an event of the device; look() hears of a failure
  if (launched_.empty()) next_look_ = Clock::now() + std::chrono::milliseconds(1);
  launched_.push_back({std::move(completion), what});
  return {};
}

Status ByNccl::sweep() {
  while (!launched_.empty()) {
    bool there = false;
    HVD_RETURN_IF_ERROR(launched_.front().completion->reached(&there));
    if (!there) break;
    launched_.pop_front();
  }
  return {};
}

Status ByNccl::look() {
  const auto now = Clock::now();
  if (launched_.empty() || now < next_look_) return {};
  next_look_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kLook));
  Status status = sweep();
  if (status.ok() && !launched_.empty()) status = sets_.async_error();
  return status.ok() ? status : status.with(launched_.front().what).with(device_->description());
}

void ByNccl::end(const Status& why, bool all_take_part) {
  if (why.code() == Code::shutdown && all_take_part) {
    sets_.end({});
  } else {
    for (const Launched& l : launched_) {
      bool there = false;
      if (!l.completion->reached(&there).ok() || !there) l.completion->fail(why);
    }
    sets_.end(why);
  }
  launched_.clear();
}

}  // namespace hvd
