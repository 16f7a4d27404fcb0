#include "engine/execute.h"

#include <cstring>
#include <new>
#include <numeric>

#include "collectives/exact_sum.h"
#include "collectives/reduce.h"

namespace hvd {
std::string described(const Response& r) {
  const std::string more = r.names.size() > 1 ? " and " + std::to_string(r.names.size() - 1) + " fused with it" : "";
  return std::string(name_of(r.kind)) + " '" + r.names.front() + "'" + more;
}

size_t elements_of(const std::vector<int64_t>& shape, size_t from) {
  size_t n = 1;
  for (size_t i = from; i < shape.size(); ++i) n *= static_cast<size_t>(shape[i]);
  return n;
}

ReduceOp backend_op(ReduceOp op) { return op == ReduceOp::average ? ReduceOp::sum : op; }
bool sums_exactly(const Response& r) {
  const bool reduces = r.kind == Kind::allreduce || r.kind == Kind::reducescatter;
  const bool scales = r.op == ReduceOp::average || (r.op == ReduceOp::sum && (r.prescale != 1.0 || r.postscale != 1.0));
  return reduces && scales && is_integer(r.dtype);
}
Scale scale_after(const Response& r, int n) { return {r.postscale, r.op == ReduceOp::average ? n : 1}; }

size_t bytes_of(const Response& r, const Comm& comm) {
  const size_t n = static_cast<size_t>(comm.size), element = size_of(r.dtype);
  size_t elements = 0;
  switch (r.kind) {
    case Kind::allreduce:
    case Kind::broadcast:
    case Kind::reducescatter:
      for (const auto& shape : r.shapes) elements += elements_of(shape);
      break;
    case Kind::allgather:
      for (size_t i = 0; i < r.shapes.size(); ++i) {
        const auto rows = r.sizes.begin() + static_cast<ptrdiff_t>(i * n);
        elements += static_cast<size_t>(std::accumulate(rows, rows + comm.size, int64_t{0})) * elements_of(r.shapes[i], 1);
      }
      break;
    case Kind::alltoall:
      for (size_t from = 0; from < n; ++from)
        elements += static_cast<size_t>(r.sizes[from * n + static_cast<size_t>(comm.rank)]) * elements_of(r.shapes[0], 1);
      break;
    // A barrier has the shape of a scalar, but no elements.
    default: break;
  }
  return elements * element;
}

Status Executor::run(const Response& response, const std::vector<Operation*>& operations) {
  Comm* comm = connections_->comm(response.set);
  if (!comm) return {};
  const Execution execution{response, operations, *comm, *backend_, bytes_of(response, *comm), false, *number_};
  current_ = &execution;
  observers_->notify(&Observer::started, execution);
  Status status;
  try {
    status = dispatch(*comm, response, operations);
    // The size of a result can depend on all ranks, so there may be too little memory for it.
  } catch (const std::bad_alloc&) {
    status =
        Status(Code::internal, std::string(name_of(response.kind)) + " '" + response.names.front() + "': not enough memory for the result");
  }
  current_ = nullptr;
  observers_->notify(&Observer::finished, execution, status);
  return status;
}

Status Executor::dispatch(Comm& comm, const Response& r, const std::vector<Operation*>& ops) {
  if (r.kind == Kind::allreduce) return allreduce(comm, r, ops);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!ops[i]) return Status(Code::internal, std::string(name_of(r.kind)) + " '" + r.names[i] + "' was not submitted here");
  }
  switch (r.kind) {
    case Kind::allgather: return allgather(comm, r, ops);
    case Kind::broadcast: return broadcast(comm, r, *ops.front());
    case Kind::alltoall: return alltoall(comm, r, *ops.front());
    case Kind::reducescatter: return reducescatter(comm, r, ops);
    case Kind::barrier: enter(Phase::carry); return backend_->barrier(comm);
    default: return Status(Code::internal, std::string("cannot execute ") + name_of(r.kind));
  }
}

Status Executor::allreduce(Comm& comm, const Response& r, const std::vector<Operation*>& ops) {
  if (r.across_hosts && !comm.local)
    return Status(Code::internal, "a reduction within hosts first needs hosts with several ranks, but no two ranks share a host");
  // This rank owns no slice of the data, because another host has fewer ranks than this one.
  if (r.across_hosts && !comm.cross) return {};
  Comm& among = r.across_hosts ? *comm.cross : comm;
  pieces_.clear();
  size_t total = 0;
  const bool exact = sums_exactly(r), prescales = r.prescale != 1.0 && !exact;
  if (prescales) enter(Phase::copy_in);
  for (size_t i = 0; i < ops.size(); ++i) {
    const size_t count = elements_of(r.shapes[i]);
    total += count;
    if (!ops[i]) {
      pieces_.push_back({needs_neutral(r) ? neutral(comm, r) : nullptr, nullptr, count});
      continue;
    }
    const std::byte* in = ops[i]->in;
    if (prescales) {
      scale(r.dtype, ops[i]->out, in, count, {r.prescale, 1});
      in = ops[i]->out;
    }
    pieces_.push_back({in, ops[i]->out, count});
  }
  const Segments segments{pieces_, total};
  enter(Phase::carry);
  if (exact) return allreduce_exactly(among, r, scale_after(r, comm.size));
  if (r.wire != WireFormat::none) {
    residuals_.clear();
    for (const Operation* op : ops) residuals_.push_back(op ? op->residual : nullptr);
    return backend_->allreduce_compressed(among, segments, residuals_, r.wire, scale_after(r, comm.size));
  }
  return backend_->allreduce(among, segments, r.dtype, backend_op(r.op), scale_after(r, comm.size));
}

Status Executor::broadcast(Comm& comm, const Response& r, Operation& op) {
  const size_t bytes = elements_of(r.shapes[0]) * size_of(r.dtype);
  const int root = comm.rank_of(r.root);
  if (comm.rank == root) {
    if (op.out != op.in && bytes) std::memcpy(op.out, op.in, bytes);
  }
  enter(Phase::carry);
  return backend_->broadcast(comm, op.out, bytes, root);
}

Status Executor::alltoall(Comm& comm, const Response& r, Operation& op) {
  const size_t row = elements_of(r.shapes[0], 1) * size_of(r.dtype);
  const size_t n = static_cast<size_t>(comm.size);
  sizes_.clear();
  more_sizes_.clear();
  op.sizes.clear();
  size_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    sizes_.push_back(static_cast<size_t>(r.sizes[comm.rank * n + i]) * row);
    const int64_t received = r.sizes[i * n + comm.rank];
    op.sizes.push_back(received);
    more_sizes_.push_back(static_cast<size_t>(received) * row);
    total += more_sizes_.back();
  }
  enter(Phase::allocate_output);
  op.make_output(total);
  enter(Phase::carry);
  return backend_->alltoall(comm, op.in, sizes_, op.output->data(), more_sizes_);
}

}  // namespace hvd
