#include "nccl/collectives.h"

#include <algorithm>

namespace hvd::nccl {
namespace {

// Maximum number of ranks for which unequal parts are gathered by one broadcast per part. Larger sets use sends and receives, all of which
// run at the same time.
constexpr int kFewRanks = 8;

// RAII scope of one NCCL group. After a failed call, later calls are skipped. The group is always closed, because NCCL
// tracks open groups per thread.
class Group {
 public:
  explicit Group(Communicator& c) : c_(c) { add(c.library().group_start(), "ncclGroupStart"); }
  Group(const Group&) = delete;

  bool ok() const { return first_.ok(); }
  void add(Result result, const char* what) {
    if (first_.ok()) first_ = status_of(c_.library(), result, what, c_.handle());
  }
  Status end() {
    const Status ended = c_.settle(c_.library().group_end(), "ncclGroupEnd");
    return first_.ok() ? ended : first_;
  }

 private:
  Communicator& c_;
  Status first_;
};

// NCCL operation for a reduction. A premultiplied sum exists only as long as this object, for the calls of one group.
class Operation {
 public:
  Operation(Communicator& c, const Reduction& r) : c_(c), made_(r.premultiplied), op_(static_cast<int>(r.op)) {
    if (!made_) return;
    alignas(8) unsigned char scalar[8] = {};
    encode_scalar(r.type, r.scalar, scalar);
    status_ = c.settle(c.library().red_op_create_premul_sum(&op_, scalar, r.type, kScalarOnHost, c.handle()), "ncclRedOpCreatePreMulSum");
    made_ = status_.ok();
  }
  ~Operation() {
    if (made_) static_cast<void>(c_.library().red_op_destroy(op_, c_.handle()));
  }
  Operation(const Operation&) = delete;

  const Status& status() const { return status_; }
  int number() const { return op_; }

 private:
  Communicator& c_;
  bool made_;
  int op_;
  Status status_;
};

Status usable(const Communicator& c) {
  switch (c.state()) {
    case Communicator::State::ready: return {};
    case Communicator::State::making: return {Code::internal, "the NCCL communicator is still being created"};
    default: return c.error();
  }
}

std::byte* bytes_of(void* p) { return static_cast<std::byte*>(p); }
const std::byte* bytes_of(const void* p) { return static_cast<const std::byte*>(p); }

bool all_equal(std::span<const size_t> parts) {
  return std::all_of(parts.begin(), parts.end(), [&](size_t n) { return n == parts[0]; });
}

}  // namespace

Status allreduce(Communicator& c, Stream stream, const Reduction& reduction, std::span<const Piece> pieces) {
  HVD_RETURN_IF_ERROR(usable(c));
  Operation op(c, reduction);
  HVD_RETURN_IF_ERROR(op.status());
  const Library& l = c.library();
  const auto call = [&](const Piece& p) {
    return p.count == 0 ? kSuccess : l.all_reduce(p.in, p.out, p.count, reduction.type, op.number(), c.handle(), stream);
  };
  if (pieces.size() == 1) return c.settle(call(pieces[0]), "ncclAllReduce");
  Group group(c);
  for (size_t i = 0; i < pieces.size() && group.ok(); ++i) group.add(call(pieces[i]), "ncclAllReduce");
  return group.end();
}

Status broadcast(Communicator& c, Stream stream, void* data, size_t bytes, int root) {
  HVD_RETURN_IF_ERROR(usable(c));
  if (bytes == 0) return {};
  return c.settle(c.library().broadcast(data, data, bytes, Type::uint8, root, c.handle(), stream), "ncclBroadcast");
}

Status allgather(Communicator& c, Stream stream, const void* in, void* out, std::span<const size_t> bytes) {
  HVD_RETURN_IF_ERROR(usable(c));
  const Library& l = c.library();
  const auto own = static_cast<size_t>(c.rank());
  if (all_equal(bytes)) {
    if (bytes[0] == 0) return {};
    return c.settle(l.all_gather(in, out, bytes[0], Type::uint8, c.handle(), stream), "ncclAllGather");
  }
  Group group(c);
  std::byte* at = bytes_of(out);
  for (size_t r = 0; r < bytes.size() && group.ok(); at += bytes[r++]) {
    const int rank = static_cast<int>(r);
    if (c.size() <= kFewRanks) {
      if (bytes[r] != 0) group.add(l.broadcast(r == own ? in : at, at, bytes[r], Type::uint8, rank, c.handle(), stream), "ncclBroadcast");
      continue;
    }
    const bool in_place = r == own && in == at;
    if (bytes[own] != 0 && !in_place) group.add(l.send(in, bytes[own], Type::uint8, rank, c.handle(), stream), "ncclSend");
    if (bytes[r] != 0 && !in_place) group.add(l.recv(at, bytes[r], Type::uint8, rank, c.handle(), stream), "ncclRecv");
  }
  return group.end();
}

Status alltoall(Communicator& c, Stream stream, const void* in, std::span<const size_t> send_bytes, void* out,
                std::span<const size_t> recv_bytes) {
  HVD_RETURN_IF_ERROR(usable(c));
  const Library& l = c.library();
  Group group(c);
  const std::byte* from = bytes_of(in);
  std::byte* to = bytes_of(out);
  for (size_t r = 0; r < send_bytes.size() && group.ok(); ++r) {
    const int rank = static_cast<int>(r);
    if (send_bytes[r] != 0) group.add(l.send(from, send_bytes[r], Type::uint8, rank, c.handle(), stream), "ncclSend");
    if (recv_bytes[r] != 0) group.add(l.recv(to, recv_bytes[r], Type::uint8, rank, c.handle(), stream), "ncclRecv");
    from += send_bytes[r];
    to += recv_bytes[r];
  }
  return group.end();
}

Status reducescatter(Communicator& c, Stream stream, const Reduction& reduction, const void* in, void* out,
                     std::span<const size_t> counts) {
  HVD_RETURN_IF_ERROR(usable(c));
  Operation op(c, reduction);
  HVD_RETURN_IF_ERROR(op.status());
  const Library& l = c.library();
  if (all_equal(counts)) {
    if (counts[0] == 0) return {};
    return c.settle(l.reduce_scatter(in, out, counts[0], reduction.type, op.number(), c.handle(), stream), "ncclReduceScatter");
  }
  Group group(c);
  const std::byte* at = bytes_of(in);
  for (size_t r = 0; r < counts.size() && group.ok(); ++r) {
    if (counts[r] != 0) {
      group.add(l.reduce(at, out, counts[r], reduction.type, op.number(), static_cast<int>(r), c.handle(), stream), "ncclReduce");
    }
    at += counts[r] * size_of(reduction.type);
  }
  return group.end();
}

}  // namespace hvd::nccl
