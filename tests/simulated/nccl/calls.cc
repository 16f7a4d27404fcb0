// The operations, with NCCL's argument checks.
#include <cstring>

#include "driver.h"
#include "group.h"
#include "knobs.h"

namespace simnccl {
namespace {

ncclResult_t refused(const Task& t, const std::string& why) {
  return fail_group(failed(ncclInvalidArgument, std::string("nccl") + name_of(t.kind) + " : " + why));
}

// Reductions: numbers below ncclNumOps, then those that the communicator has created.
ncclResult_t find_op(const Task& t, int op, Reduce* how) {
  how->type = t.type;
  how->size = t.comm->size;
  if (op >= 0 && op < ncclNumOps) {
    how->op = op;
    return ncclSuccess;
  }
  std::lock_guard lock(t.comm->mutex);
  const auto own = static_cast<size_t>(op - ncclNumOps);
  if (op < 0 || own >= t.comm->own.size() || !t.comm->own[own].living)
    return refused(t, "invalid reduction operation " + std::to_string(op));
  if (t.comm->own[own].how.type != t.type) return refused(t, "the operation was made for another datatype");
  *how = t.comm->own[own].how;
  return ncclSuccess;
}

bool reduces(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter; }

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto p = reinterpret_cast<uint64_t>(a), q = reinterpret_cast<uint64_t>(b);
  return a_bytes && b_bytes && p < q + b_bytes && q < p + a_bytes;
}

// Only exact in-place use is allowed: NCCL does not check, and gives wrong results.
void check_place(const Task& t) {
  const auto* in = static_cast<const std::byte*>(t.in);
  const auto* out = static_cast<const std::byte*>(t.out);
  const size_t part = t.bytes(), all = part * static_cast<size_t>(t.comm->size), offset = part * static_cast<size_t>(t.comm->rank);
  bool wrong = false;
  switch (t.kind) {
    case Kind::all_reduce: wrong = in != out && overlap(in, part, out, part); break;
    case Kind::broadcast: wrong = t.comm->rank == t.peer && in != out && overlap(in, part, out, part); break;
    case Kind::all_gather: wrong = in != out + offset && overlap(in, part, out, all); break;
    case Kind::reduce_scatter: wrong = out != in + offset && overlap(in, all, out, part); break;
    default: break;
  }
  if (wrong) mistake(t.comm->name() + ": " + t.text() + " has memory in and out that overlaps, and is not in place");
}

ncclResult_t call(Task t, int op) {
  const std::string name = std::string("nccl") + name_of(t.kind);
  if (const ncclResult_t r = usable(t.comm, name.c_str()); r != ncclSuccess) return fail_group(r);
  if (const ncclResult_t r = count_call(name_of(t.kind), t.comm->rank); r != ncclSuccess) return fail_group(r);
  if (t.comm->creating.load()) return refused(t, "the communicator is still being made");
  if (t.type < 0 || t.type >= ncclFloat8e4m3 || t.type == ncclUint32 || t.type == ncclUint64)
    return refused(t, "type " + std::to_string(t.type) + " is invalid, or none of the simulated ones");
  if (t.peer < 0 || t.peer >= t.comm->size) return refused(t, "invalid root or peer " + std::to_string(t.peer));
  if (reduces(t.kind)) {
    if (const ncclResult_t r = find_op(t, op, &t.how); r != ncclSuccess) return r;
  }
  if (t.count == 0 && !t.message()) return ncclSuccess;
  const bool reads = t.kind != Kind::recv && (t.kind != Kind::broadcast || t.comm->rank == t.peer);
  const bool writes = t.kind != Kind::send && (t.kind != Kind::reduce || t.comm->rank == t.peer);
  if (t.count != 0 && ((reads && !t.in) || (writes && !t.out))) return refused(t, "a buffer is NULL");
  if (driver().current_device() < 0 && t.comm->blocking)
    mistake(t.comm->name() + ": " + t.text() + " on a thread without a current context");
  check_place(t);
  if (t.comm->size == 1 && !t.message()) {
    launch_alone(t);
    return ncclSuccess;
  }
  return fail_group(submit(t)) == ncclInProgress ? ncclInProgress : ncclSuccess;
}

Task task(Kind kind, ncclComm_t comm, cudaStream_t stream, const void* in, void* out, size_t count, int type, int peer = 0) {
  return {.kind = kind, .comm = comm, .stream = stream, .in = in, .out = out, .count = count, .type = type, .how = {}, .peer = peer};
}

}  // namespace
}  // namespace simnccl

using namespace simnccl;

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(task(Kind::all_reduce, comm, stream, in, out, count, type), op);
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return call(task(Kind::reduce, comm, stream, in, out, count, type, root), op);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return call(task(Kind::broadcast, comm, stream, in, out, count, type, root), 0);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return call(task(Kind::all_gather, comm, stream, in, out, count, type), 0);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return call(task(Kind::reduce_scatter, comm, stream, in, out, count, type), op);
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call(task(Kind::send, comm, stream, in, nullptr, count, type, peer), 0);
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call(task(Kind::recv, comm, stream, nullptr, out, count, type, peer), 0);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t residence,
                                      ncclComm_t comm) {
  if (const ncclResult_t r = usable(comm, "ncclRedOpCreatePreMulSum"); r != ncclSuccess) return r;
  if (const ncclResult_t r = count_call("RedOpCreatePreMulSum", comm->rank); r != ncclSuccess) return r;
  if (!op || !scalar || type < 0 || type >= ncclNumTypes) return failed(ncclInvalidArgument, "ncclRedOpCreatePreMulSum : invalid argument");
  if (residence != ncclScalarHostImmediate) return failed(ncclInvalidArgument, "a scalar in device memory: the simulator cannot");
  std::lock_guard lock(comm->mutex);
  ncclComm::Own own;
  own.how.type = type, own.how.size = comm->size, own.how.premultiplied = true;
  std::memcpy(own.how.scalar, scalar, bytes_of(type));
  *op = ncclNumOps + static_cast<int>(comm->own.size());
  comm->own.push_back(own);
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  if (const ncclResult_t r = usable(comm, "ncclRedOpDestroy"); r != ncclSuccess) return r;
  if (const ncclResult_t r = count_call("RedOpDestroy", comm->rank); r != ncclSuccess) return r;
  std::lock_guard lock(comm->mutex);
  const auto own = static_cast<size_t>(op - ncclNumOps);
  if (op < ncclNumOps || own >= comm->own.size() || !comm->own[own].living)
    return failed(ncclInvalidArgument, "ncclRedOpDestroy : no such operation");
  comm->own[own].living = false;
  return ncclSuccess;
}
