#include "engine/device/by_nccl.h"

#include <algorithm>
#include <bit>

#include "engine/execute.h"
#include "nccl/collectives.h"

namespace hvd {
namespace {

constexpr size_t kAlignment = 256;

// Kinds whose results have a size that the caller knew.
bool fits(const Response& r) {
  const bool reduces = r.kind == Kind::allreduce || r.kind == Kind::reducescatter;
  return r.kind == Kind::broadcast || (reduces && r.wire == WireFormat::none);
}

}  // namespace

Status ByNccl::asks(const Response& r, Comm& comm, const std::shared_ptr<Device>& device, bool* yes) {
  if (device && !device_) device_ = device;
  HVD_RETURN_IF_ERROR(sets_.find(r.set, comm, device, &set_));
  *yes = set_ && fits(r) && kinds_[static_cast<size_t>(r.kind)];
  if (!*yes || r.kind == Kind::broadcast) return {};
  const nccl::Reduction how = reduction(*set_, r, comm);
  *yes = how.possible() && how.before.identity() && how.after.identity();
  return {};
}

nccl::Reduction ByNccl::reduction(const NcclSet& set, const Response& r, const Comm& comm) const {
  nccl::Question q;
  q.element = nccl::element_of(r.dtype);
  q.op = r.op;
  q.prescale = r.prescale;
  q.postscale = r.postscale;
  q.size = comm.size;
  q.version = set.version;
  q.capability = set.capability;
  return nccl::decide(q);
}

Status ByNccl::start(const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  const Device::Turn turn(*device_);
  Status status = turn.status();
  if (status.ok() && !stream_) status = device_->make_stream(&stream_);
  if (status.ok()) status = launch(*set_, r, comm, operations);
  return status.ok() ? status : status.with(device_->description());
}

Status ByNccl::launch(const NcclSet& set, const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  nccl::Communicator& c = *set.communicator;
  HVD_RETURN_IF_ERROR(c.async_error());
  for (const OperationPtr& op : operations) HVD_RETURN_IF_ERROR(device_->wait(stream_, op->on_device->ready));
  if (r.kind == Kind::broadcast) {
    const Operation& op = *operations.front();
    const size_t bytes = elements_of(r.shapes[0]) * size_of(r.dtype);
    const int root = comm.rank_of(r.root);
    if (comm.rank == root && op.in != op.out) HVD_RETURN_IF_ERROR(device_->copy(op.out, op.in, bytes, stream_));
    if (bytes > 0) HVD_RETURN_IF_ERROR(nccl::broadcast(c, stream_, op.out, bytes, root));
  } else if (r.kind == Kind::allreduce) {
    HVD_RETURN_IF_ERROR(allreduce(set, r, comm, operations));
  } else {
    const nccl::Reduction how = reduction(set, r, comm);
    std::vector<size_t> counts(static_cast<size_t>(comm.size));
    for (size_t i = 0; i < operations.size(); ++i) {
      for (int rank = 0; rank < comm.size; ++rank) {
        counts[static_cast<size_t>(rank)] = scattered_elements(r.shapes[i][0], elements_of(r.shapes[i], 1), comm.size, rank);
      }
      HVD_RETURN_IF_ERROR(nccl::reducescatter(c, stream_, how, operations[i]->in, operations[i]->out, counts));
    }
  }
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(device_, stream_, &completion));
  for (const OperationPtr& op : operations) op->on_device->completion = completion;
  remember(completion);
  return {};
}

Status ByNccl::allreduce(const NcclSet& set, const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  std::vector<nccl::Piece> pieces;
  size_t bytes = 0;  // of zeros
  for (size_t i = 0; i < r.shapes.size(); ++i) {
    const size_t count = elements_of(r.shapes[i]);
    if (operations.empty()) {
      pieces.push_back({reinterpret_cast<void*>(bytes), reinterpret_cast<void*>(bytes), count});
      bytes += (count * size_of(r.dtype) + kAlignment - 1) / kAlignment * kAlignment;
    } else {
      pieces.push_back({operations[i]->in, operations[i]->out, count});
    }
  }
  if (operations.empty()) {
    // This rank has joined: one group like the others', since NCCL orders what is in a group by itself.
    HVD_RETURN_IF_ERROR(make_zeros(bytes));
    for (nccl::Piece& p : pieces) p.in = p.out = static_cast<std::byte*>(zeros_) + reinterpret_cast<size_t>(p.out);
  }
  return nccl::allreduce(*set.communicator, stream_, reduction(set, r, comm), pieces);
}

Status ByNccl::make_zeros(size_t bytes) {
  if (bytes > zeros_bytes_) {
    // What was there may be in use, and freeing it may wait: as it doubles, what is left behind is no more than what is in use.
    zeros_bytes_ = std::bit_ceil(bytes);
    HVD_RETURN_IF_ERROR(device_->allocate(zeros_bytes_, &zeros_));
  }
  return device_->zero(zeros_, bytes, stream_);
}

void ByNccl::remember(const std::shared_ptr<const Completion>& completion) {
  constexpr size_t kMany = 64;
  while (!launched_.empty()) {
    const auto first = launched_.front().lock();
    bool forgotten = !first;
    if (first && launched_.size() > kMany && !first->reached(&forgotten).ok()) break;
    if (!forgotten) break;
    launched_.pop_front();
  }
  launched_.push_back(completion);
}

void ByNccl::end(const Status& why, bool all_take_part) {
  if (why.code() == Code::shutdown && all_take_part) {
    sets_.end({});
    return;
  }
  for (const auto& weak : launched_) {
    const auto completion = weak.lock();
    bool there = false;
    if (completion && (!completion->reached(&there).ok() || !there)) completion->fail(why);
  }
  sets_.end(why);
}

}  // namespace hvd
