#include "engine/device/by_nccl.h"

#include <algorithm>

#include "engine/execute.h"
#include "nccl/collectives.h"

namespace hvd {
namespace {

constexpr size_t kAlignment = 256;

// Kinds whose results have a size that the caller knew.
bool fits(const Response& r) {
  const bool reduces = (r.kind == Kind::allreduce && !r.across_hosts) || r.kind == Kind::reducescatter;
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
  if (status.ok()) status = launch(*set_, r, comm, operations);
  // Where it fails a part may be under way.
  if (turn.status().ok()) remember(std::string(name_of(r.kind)) + " '" + r.names.front() + "'", operations);
  return status.ok() ? status : status.with(device_->description());
}

Status ByNccl::launch(const NcclSet& set, const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  nccl::Communicator& c = *set.communicator;
  HVD_RETURN_IF_ERROR(c.async_error());
  for (const OperationPtr& op : operations) HVD_RETURN_IF_ERROR(device_->wait(stream(), op->on_device->ready));
  if (r.kind == Kind::broadcast) {
    const Operation& op = *operations.front();
    const size_t bytes = elements_of(r.shapes[0]) * size_of(r.dtype);
    const int root = comm.rank_of(r.root);
    if (comm.rank == root && op.in != op.out) HVD_RETURN_IF_ERROR(device_->copy(op.out, op.in, bytes, stream()));
    if (bytes > 0) HVD_RETURN_IF_ERROR(nccl::broadcast(c, stream(), op.out, bytes, root));
  } else if (r.kind == Kind::allreduce) {
    HVD_RETURN_IF_ERROR(allreduce(set, r, comm, operations));
  } else {
    const nccl::Reduction how = reduction(set, r, comm);
    std::vector<size_t> counts(static_cast<size_t>(comm.size));
    for (size_t i = 0; i < operations.size(); ++i) {
      for (int rank = 0; rank < comm.size; ++rank) {
        counts[static_cast<size_t>(rank)] = scattered_elements(r.shapes[i][0], elements_of(r.shapes[i], 1), comm.size, rank);
      }
      HVD_RETURN_IF_ERROR(nccl::reducescatter(c, stream(), how, operations[i]->in, operations[i]->out, counts));
    }
  }
  return {};
}

void ByNccl::remember(const std::string& what, const std::vector<OperationPtr>& operations) {
  std::shared_ptr<const Completion> completion;
  if (!Completion::record(device_, stream(), &completion).ok()) return;
  for (const OperationPtr& op : operations) op->on_device->completion = completion;
  constexpr size_t kMany = 64;
  if (launched_.size() >= kMany) static_cast<void>(sweep());  // each has an event of the device; look() hears of a failure
  if (launched_.empty()) next_look_ = Clock::now() + std::chrono::milliseconds(1);
  launched_.push_back({std::move(completion), what});
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
    std::byte* zeros = nullptr;
    HVD_RETURN_IF_ERROR(take_zeros(bytes, &zeros));
    for (nccl::Piece& p : pieces) p.in = p.out = zeros + reinterpret_cast<size_t>(p.out);
  }
  return nccl::allreduce(*set.communicator, stream(), reduction(set, r, comm), pieces);
}

// On the stream, where the next one that takes them waits for those who have them now.
Status ByNccl::take_zeros(size_t bytes, std::byte** out) {
  std::shared_ptr<GpuMemory::Block> block;
  HVD_RETURN_IF_ERROR(sets_.memory().take(bytes, &block));
  *out = block->data();
  return device_->zero(*out, bytes, stream());
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
