#include "engine/device/nccl_path.h"

#include <algorithm>
#include <numeric>

#include "engine/device/splitting.h"
#include "engine/execute.h"
#include "nccl/collectives.h"

namespace hvd {

namespace {

// True if NCCL can execute the response. It cannot execute compressed allreduces, those across hosts, and minima, maxima and products for
// which a rank that has called join() would contribute zeros.
bool fits(const Response& r) {
  return r.kind != Kind::allreduce || (r.wire == WireFormat::none && !r.across_hosts && !(r.partial && needs_neutral(r)));
}

}  // namespace

Status NcclPath::eligible(const Response& r, Comm& comm, const std::shared_ptr<Device>& device, bool* yes) {
  if (device && !device_) device_ = device;
  HVD_RETURN_IF_ERROR(sets_.find(r.set, comm, device, &set_));
  *yes = set_ && fits(r) && kinds_[static_cast<size_t>(r.kind)];
  if (!*yes || (r.kind != Kind::allreduce && r.kind != Kind::reducescatter)) return {};
  const nccl::Reduction how = reduction(*set_, r, comm);
  // The engine's kernels do the scaling that NCCL cannot do, in the output memory. They can thus scale before a reduction only if each
  // output is as large as its input.
  const bool before = how.before.identity() || (set_->kernels && r.kind == Kind::allreduce);
  *yes = how.possible() && before && (how.after.identity() || set_->kernels);
  return {};
}

Status NcclPath::start(const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  const Device::Turn turn(*device_);
  Status status = turn.status();
  if (status.ok()) status = launch(*set_, r, comm, operations);
  // Record the completion event even after a failure, because part of the work might be in flight.
  if (turn.status().ok()) {
    const Status remembered = remember(described(r), operations);
    if (status.ok()) status = remembered;
  }
  return status.ok() ? status : status.with(device_->description());
}

Status NcclPath::remember(std::string what, const std::vector<OperationPtr>& operations) {
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(device_, stream(), &completion));
  for (const OperationPtr& op : operations) op->on_device->completion = completion;
  launched_.add(std::move(completion), std::move(what));
  return {};
}

Status NcclPath::look() { return launched_.empty() ? Status() : launched_.look(sets_).with(device_->description()); }

void NcclPath::end(const Status& why, bool all_take_part) {
  if (why.code() == Code::shutdown && all_take_part) {
    sets_.end({});
  } else {
    launched_.fail(why);
    sets_.end(why);
  }
  launched_.clear();
}

// Launch functions for the individual kinds of operations.

namespace {

Scale scale_of(const nccl::Scaling& s) { return {s.factor, s.divisor}; }

}  // namespace

nccl::Reduction NcclPath::reduction(const NcclSet& set, const Response& r, const Comm& comm) const {
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

Status NcclPath::launch(const NcclSet& set, const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  HVD_RETURN_IF_ERROR(set.communicator->async_error());
  for (const OperationPtr& op : operations) HVD_RETURN_IF_ERROR(device_->wait(stream(), op->on_device->ready));
  switch (r.kind) {
    case Kind::allreduce: return allreduce(set, r, comm, operations);
    case Kind::broadcast: return broadcast(set, r, comm, *operations.front());
    case Kind::allgather: return allgather(set, r, comm, operations);
    case Kind::alltoall: return alltoall(set, r, comm, *operations.front());
    default: return reducescatter(set, r, comm, operations);
  }
}

Status NcclPath::broadcast(const NcclSet& set, const Response& r, const Comm& comm, const Operation& op) {
  const size_t bytes = elements_of(r.shapes[0]) * size_of(r.dtype);
  const int root = comm.rank_of(r.root);
  if (comm.rank == root && op.in != op.out) HVD_RETURN_IF_ERROR(device_->copy(op.out, op.in, bytes, stream()));
  return bytes > 0 ? nccl::broadcast(*set.communicator, stream(), op.out, bytes, root) : Status();
}

// Allocate the result here, because its size was not known earlier. The program copies it to its own tensor in stream
// order.
Status NcclPath::make_output(size_t bytes, Operation* op) {
  std::shared_ptr<GpuMemory::Block> block;
  if (bytes > 0) HVD_RETURN_IF_ERROR(sets_.memory().take(bytes, &block));
  std::byte* data = block ? block->data() : nullptr;
  op->output = std::make_shared<Output>(std::move(block), data, bytes);
  return {};
}

Status NcclPath::allgather(const NcclSet& set, const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  const auto n = static_cast<size_t>(comm.size);
  std::vector<size_t> bytes(n);
  for (size_t i = 0; i < operations.size(); ++i) {
    Operation& op = *operations[i];
    const size_t row = elements_of(r.shapes[i], 1) * size_of(r.dtype);
    op.sizes.assign(r.sizes.begin() + static_cast<ptrdiff_t>(i * n), r.sizes.begin() + static_cast<ptrdiff_t>((i + 1) * n));
    std::ranges::transform(op.sizes, bytes.begin(), [row](int64_t rows) { return static_cast<size_t>(rows) * row; });
    HVD_RETURN_IF_ERROR(make_output(std::accumulate(bytes.begin(), bytes.end(), size_t{0}), &op));
    HVD_RETURN_IF_ERROR(nccl::allgather(*set.communicator, stream(), op.in, op.output->data(), bytes));
  }
  return {};
}

Status NcclPath::alltoall(const NcclSet& set, const Response& r, const Comm& comm, Operation& op) {
  const size_t row = elements_of(r.shapes[0], 1) * size_of(r.dtype);
  const auto n = static_cast<size_t>(comm.size), me = static_cast<size_t>(comm.rank);
  std::vector<size_t> sent, received;
  op.sizes.clear();
  for (size_t i = 0; i < n; ++i) {
    sent.push_back(static_cast<size_t>(r.sizes[me * n + i]) * row);
    op.sizes.push_back(r.sizes[i * n + me]);
    received.push_back(static_cast<size_t>(op.sizes.back()) * row);
  }
  HVD_RETURN_IF_ERROR(make_output(std::accumulate(received.begin(), received.end(), size_t{0}), &op));
  return nccl::alltoall(*set.communicator, stream(), op.in, sent, op.output->data(), received);
}

Status NcclPath::reducescatter(const NcclSet& set, const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  const nccl::Reduction how = reduction(set, r, comm);
  std::vector<size_t> counts(static_cast<size_t>(comm.size));
  for (size_t i = 0; i < operations.size(); ++i) {
    for (int rank = 0; rank < comm.size; ++rank) {
      counts[static_cast<size_t>(rank)] = scattered_elements(r.shapes[i][0], elements_of(r.shapes[i], 1), comm.size, rank);
    }
    std::byte* out = operations[i]->out;
    HVD_RETURN_IF_ERROR(nccl::reducescatter(*set.communicator, stream(), how, operations[i]->in, out, counts));
    if (how.after.identity()) continue;
    const size_t own = counts[static_cast<size_t>(comm.rank)];
    HVD_RETURN_IF_ERROR(sets_.compute().scale(r.dtype, out, out, own, scale_of(how.after), stream()));
  }
  return {};
}

// Launch one NCCL group, with all small tensors packed into one.
Status NcclPath::allreduce(const NcclSet& set, const Response& r, const Comm& comm, const std::vector<OperationPtr>& operations) {
  const nccl::Reduction how = reduction(set, r, comm);
  std::vector<size_t> counts, bytes;
  for (const auto& shape : r.shapes) counts.push_back(elements_of(shape)), bytes.push_back(counts.back() * size_of(r.dtype));
  const Packing packing = plan_packing(bytes, set.kernels);
  if (operations.empty()) return allreduce_zeros(set, how, counts, size_of(r.dtype), packing);

  std::shared_ptr<GpuMemory::Block> buffer;
  // Copies to make before the reduction (in) and after it (out). Small tensors go through the fusion buffer, others are only scaled.
  std::vector<Compute::Move> in, out;
  std::vector<nccl::Piece> pieces;
  if (packing.bytes > 0) {
    HVD_RETURN_IF_ERROR(sets_.memory().take(packing.bytes, &buffer));
    for (size_t k = 0; k < packing.packed.size(); ++k) {
      const size_t i = packing.packed[k];
      std::byte* at = buffer->data() + packing.offsets[k];
      in.push_back({operations[i]->in, at, counts[i]});
      out.push_back({at, operations[i]->out, counts[i]});
    }
    pieces.push_back({buffer->data(), buffer->data(), packing.bytes / size_of(r.dtype)});
  }
  for (size_t i : packing.apart) {
    const Operation& op = *operations[i];
    if (!how.before.identity()) in.push_back({op.in, op.out, counts[i]});
    if (!how.after.identity()) out.push_back({op.out, op.out, counts[i]});
    pieces.push_back({how.before.identity() ? op.in : op.out, op.out, counts[i]});
  }
  Compute& compute = sets_.compute();
  if (!in.empty()) HVD_RETURN_IF_ERROR(compute.pack(r.dtype, r.dtype, in, scale_of(how.before), stream()));
  HVD_RETURN_IF_ERROR(nccl::allreduce(*set.communicator, stream(), how, pieces));
  // Release the buffer here. Its next user runs on the same stream, so it waits for this work.
  return out.empty() ? Status() : compute.pack(r.dtype, r.dtype, out, scale_of(how.after), stream());
}

// Contribute zeros for a rank that has called join(). All ranks use one NCCL group, because NCCL can reorder calls within a group.
Status NcclPath::allreduce_zeros(const NcclSet& set, const nccl::Reduction& how, std::span<const size_t> counts, size_t element,
                                 const Packing& packing) {
  std::vector<size_t> parts;
  if (packing.bytes > 0) parts.push_back(packing.bytes / element);
  for (size_t i : packing.apart) parts.push_back(counts[i]);
  size_t bytes = 0;
  for (size_t count : parts) bytes += aligned(count * element);
  if (bytes == 0) return nccl::allreduce(*set.communicator, stream(), how, {});
  std::shared_ptr<GpuMemory::Block> block;
  HVD_RETURN_IF_ERROR(sets_.memory().take(bytes, &block));
  HVD_RETURN_IF_ERROR(device_->zero(block->data(), bytes, stream()));
  std::vector<nccl::Piece> pieces;
  std::byte* at = block->data();
  for (size_t count : parts) {
    pieces.push_back({at, at, count});
    at += aligned(count * element);
  }
  return nccl::allreduce(*set.communicator, stream(), how, pieces);
}

}  // namespace hvd
