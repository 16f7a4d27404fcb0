// Mapping of collectives to MPI operations. MPI only moves bytes. Reductions are computed in this file, in the
// canonical order (collectives/reduce.h), because MPI libraries guarantee no order: they choose it by size and number
// of processes. This includes reductions of integers, although their order does not matter, because MPI_Iallreduce was
// measured to be slower.
//
// Operations use these MPI calls:
//   - A small allreduce uses MPI_Iallgather, and every rank adds all contributions.
//   - A large allreduce sends slices with MPI_Ialltoallv. Each owner adds its slice and sends the result to all ranks
//     with a second MPI_Ialltoallv.
//   - An allreduce with MPI's own sums, if configured, uses MPI_Iallreduce.
//   - If a host has several ranks, they use shared memory within the host and one of the above between hosts
//     (collectives/allreduce_hierarchical.cc).
//
// Each operation is split into pieces, which bounds the memory that MPI uses and keeps counts within the int type of
// MPI. The timeout applies to each piece.
#include "backends/mpi.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backends/contiguous.h"
#include "backends/mpi_calls.h"
#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {
namespace {

using mpi::Handle;

// Maximum bytes of data in the messages of a readiness vote. These small messages use the engine's own connections, so this much data costs
// almost no extra time.
constexpr size_t kRides = 4 << 10;
// Maximum bytes that each rank receives in an allreduce with MPI_Iallgather, which sends fewer messages but more bytes.
constexpr size_t kSmall = 256 << 10;

// Return the size in bytes of the pieces that one rank handles at a time: small enough to stay in the cache, large enough to avoid small
// messages.
size_t piece_of(size_t ranks) { return std::clamp<size_t>(ranks << 19, 2 << 20, 8 << 20); }

class MpiBackend final : public Backend {
 public:
  MpiBackend(mpi::Session* session, std::vector<int> world, bool reduces, std::unique_ptr<Backend> host)
      : session_(session), reduces_(reduces), calls_(session, std::move(world)), host_(std::move(host)) {}
  const char* name() const override { return "mpi"; }

  std::string_view algorithm(const Comm& c, Collective collective, DType d, WireFormat wire, size_t bytes) const override {
    if (is_local(c) || wire != WireFormat::none || collective == Collective::adasum) return host_->algorithm(c, collective, d, wire, bytes);
    return c.local && collective == Collective::allreduce ? "mpi_hierarchical" : "mpi";
  }

  Status allreduce(Comm& c, const Segments& s, DType d, ReduceOp op, const Scale& scale) override {
    if (is_local(c) || op == ReduceOp::adasum) return host_->allreduce(c, s, d, op, scale);
    if (!c.local) return reduce(c, s, d, op, scale);
    const BetweenHosts between = [this](Comm& cross, std::byte* data, size_t count, DType type, ReduceOp how) {
      const Segments::Piece piece{data, data, count};
      return reduce(cross, {{&piece, 1}, count}, type, how, {});
    };
    std::byte* data = pack(c, s, d);
    HVD_RETURN_IF_ERROR(allreduce_hierarchical_by(between, c, data, s.total, d, op));
    unpack(s, d, data, scale);
    return {};
  }

  Status allreduce_compressed(Comm& c, const Segments& s, std::span<float* const> residuals, WireFormat format,
                              const Scale& scale) override {
    return host_->allreduce_compressed(c, s, residuals, format, scale);
  }

  // True for small allreduces, whose data fit in the messages of the readiness vote (collectives/guarded.h), which saves an MPI call.
  // Floats that MPI would sum are excluded, because MPI can round differently.
  bool may_be_guarded(const Comm& c, size_t count, DType d) const override {
    return !(reduces_ && is_float(d)) && count * size_of(d) <= kRides && host_->may_be_guarded(c, count, d);
  }

  Status broadcast(Comm& c, std::byte* data, size_t bytes, int root) override {
    if (is_local(c)) return host_->broadcast(c, data, bytes, root);
    return within(c, [&](Handle comm) -> Status {
      const size_t most = piece_of(static_cast<size_t>(c.size));
      for (size_t first = 0; first < bytes; first += most) {
        const size_t n = std::min(most, bytes - first);
        std::byte* piece = c.rank == root ? data + first : calls_.memory(MpiCalls::kReceive, n);
        HVD_RETURN_IF_ERROR(calls_.broadcast(c, comm, piece, n, root));
        if (c.rank != root) std::memcpy(data + first, piece, n);
      }
      return {};
    });
  }

  Status allgather(Comm& c, const std::byte* in, std::byte* out, std::span<const size_t> bytes) override {
    if (is_local(c)) return host_->allgather(c, in, out, bytes);
    return within(c, [&](Handle comm) -> Status {
      const size_t largest = *std::max_element(bytes.begin(), bytes.end()), block = piece_of(bytes.size()) / bytes.size();
      for (size_t first = 0; first < largest; first += block) {
        const size_t total = cut(bytes, first, block, &remote_), own = remote_[static_cast<size_t>(c.rank)];
        std::byte* received = calls_.memory(MpiCalls::kReceive, total);
        const std::byte* send = own ? in + first : calls_.memory(MpiCalls::kSend, 1);
        HVD_RETURN_IF_ERROR(calls_.allgather(c, comm, send, received, remote_));
        spread(received, remote_, out, bytes, first);
      }
      return {};
    });
  }

  Status alltoall(Comm& c, const std::byte* in, std::span<const size_t> send, std::byte* out, std::span<const size_t> receive) override {
    if (is_local(c)) return host_->alltoall(c, in, send, out, receive);
    return within(c, [&](Handle comm) -> Status {
      size_t largest = 0;
      HVD_RETURN_IF_ERROR(largest_of_all(c, comm, *std::max_element(send.begin(), send.end()), &largest));
      const size_t block = piece_of(send.size()) / send.size();
      for (size_t first = 0; first < largest; first += block) {
        const size_t going = cut(send, first, block, &own_), coming = cut(receive, first, block, &remote_);
        std::byte* received = calls_.memory(MpiCalls::kReceive, coming);
        HVD_RETURN_IF_ERROR(calls_.alltoall(c, comm, collect(in, send, first, own_, going), own_, received, remote_));
        spread(received, remote_, out, receive, first);
      }
      return {};
    });
  }

  Status reducescatter(Comm& c, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType d, ReduceOp op,
                       const Scale& scale) override {
    if (is_local(c)) return host_->reducescatter(c, in, out, counts, d, op, scale);
    return within(c, [&](Handle comm) -> Status {
      const size_t element = size_of(d), block = std::max<size_t>(piece_of(counts.size()) / counts.size() / element, 1) * element;
      parts_.clear();
      for (const size_t count : counts) parts_.push_back(count * element);
      const size_t largest = *std::max_element(parts_.begin(), parts_.end());
      for (size_t first = 0; first < largest; first += block) {
        const size_t going = cut(parts_, first, block, &own_), part = own_[static_cast<size_t>(c.rank)];
        const std::byte* packed = collect(in, parts_, first, own_, going);
        remote_.assign(counts.size(), part);
        std::byte* received = calls_.memory(MpiCalls::kReceive, part * counts.size());
        HVD_RETURN_IF_ERROR(calls_.alltoall(c, comm, packed, own_, received, remote_));
        if (part) reduce_many(d, op, out + first, sources(received, part, counts.size()), part / element, scale);
      }
      return {};
    });
  }

  Status barrier(Comm& c) override {
    if (is_local(c)) return host_->barrier(c);
    return within(c, [&](Handle comm) { return calls_.barrier(c, comm); });
  }

  void set_removed(const Comm& c) override {
    for (const Comm* comm : {&c, static_cast<const Comm*>(c.cross)}) {
      if (comm && !is_local(*comm)) calls_.forget(*comm);
    }
  }

 private:
  // True if the host backend executes the operation, because shared memory is faster than any library.
  static bool is_local(const Comm& c) { return c.size == 1 || c.node; }

  Status within(Comm& c, const std::function<Status(Handle)>& work) {
    Handle comm = 0;
    HVD_RETURN_IF_ERROR(calls_.enter(c, &comm));
    return session_->use([&] { return work(comm); });
  }

  Status reduce(Comm& c, const Segments& s, DType d, ReduceOp op, const Scale& scale) {
    return within(c, [&](Handle comm) -> Status {
      const size_t element = size_of(d), step = piece_of(static_cast<size_t>(c.size)) / element;
      for (size_t first = 0; first < s.total; first += step) {
        const size_t n = std::min(step, s.total - first);
        const std::byte* own = in_one(s, first, n, element);
        if (!own) {
          std::byte* gathered = calls_.memory(MpiCalls::kSend, n * element);
          s.gather(first, n, element, gathered);
          own = gathered;
        }
        std::byte* result = calls_.memory(MpiCalls::kResult, n * element);
        HVD_RETURN_IF_ERROR(reduce_piece(c, comm, own, result, n, d, op));
        if (!scale.identity()) hvd::scale(d, result, result, n, scale);
        s.scatter(first, n, element, result);
      }
      return {};
    });
  }

  Status reduce_piece(Comm& c, Handle comm, const std::byte* own, std::byte* result, size_t n, DType d, ReduceOp op) {
    const size_t element = size_of(d), bytes = n * element, ranks = static_cast<size_t>(c.size);
    const mpi::Abi& abi = session_->abi();
    if (const Handle type = abi.type_of(d), by = abi.op_of(op); reduces_ && type && by) {
      return calls_.allreduce(c, comm, own, result, n, type, by);
    }
    if (bytes * ranks <= kSmall) {
      std::byte* all = calls_.memory(MpiCalls::kReceive, bytes * ranks);
      HVD_RETURN_IF_ERROR(calls_.allgather(c, comm, own, all, bytes));
      reduce_many(d, op, result, sources(all, bytes, ranks), n, {});
      return {};
    }
    parts_.clear();
    for (int i = 0; i < c.size; ++i) parts_.push_back((slice_at(n, c.size, i + 1) - slice_at(n, c.size, i)) * element);
    const size_t me = static_cast<size_t>(c.rank), part = parts_[me];
    remote_.assign(ranks, part);
    std::byte* contributions = calls_.memory(MpiCalls::kReceive, part * ranks);
    HVD_RETURN_IF_ERROR(calls_.alltoall(c, comm, own, parts_, contributions, remote_, true));
    std::byte* sum = calls_.memory(MpiCalls::kMine, std::max<size_t>(part, 1));
    sources(contributions, part, ranks);
    sources_[me] = own + slice_at(n, c.size, c.rank) * element;
    reduce_many(d, op, sum, sources_, part / element, {});
    return calls_.allgather(c, comm, sum, result, parts_);
  }

  // Return the largest number of bytes that any rank sends to another. A rank knows only its own sizes, so MPI computes the maximum.
  Status largest_of_all(Comm& c, Handle comm, size_t own, size_t* out) {
    const auto& abi = session_->abi();
    auto* send = calls_.memory(MpiCalls::kSend, sizeof(int64_t));
    auto* result = calls_.memory(MpiCalls::kResult, sizeof(int64_t));
    const auto value = static_cast<int64_t>(own);
    std::memcpy(send, &value, sizeof value);
    HVD_RETURN_IF_ERROR(calls_.allreduce(c, comm, send, result, 1, abi.int64, abi.max));
    int64_t largest = 0;
    std::memcpy(&largest, result, sizeof largest);
    *out = static_cast<size_t>(largest);
    return {};
  }

  // Compute the number of bytes of each part that one round moves, starting at offset `first` of the part. Return their sum.
  static size_t cut(std::span<const size_t> parts, size_t first, size_t block, std::vector<size_t>* out) {
    out->clear();
    for (const size_t bytes : parts) out->push_back(std::min(block, bytes - std::min(first, bytes)));
    return std::accumulate(out->begin(), out->end(), size_t{0});
  }

  // Return the data of one round as contiguous memory. They are copied unless one round covers everything. `round` holds the bytes of each
  // part in this round, and `going` is their sum.
  const std::byte* collect(const std::byte* all, std::span<const size_t> parts, size_t first, std::span<const size_t> round, size_t going) {
    if (going == std::accumulate(parts.begin(), parts.end(), size_t{0})) return all;
    std::byte* const packed = calls_.memory(MpiCalls::kSend, going);
    std::byte* to = packed;
    for (size_t i = 0; i < parts.size(); all += parts[i++]) {
      if (round[i]) std::memcpy(to, all + first, round[i]);
      to += round[i];
    }
    return packed;
  }
  // Copy one round's parts from `packed`, where they are contiguous, to their final positions in `all`.
  static void spread(const std::byte* packed, std::span<const size_t> round, std::byte* all, std::span<const size_t> parts, size_t first) {
    for (size_t i = 0; i < parts.size(); all += parts[i++]) {
      if (round[i]) std::memcpy(all + first, packed, round[i]);
      packed += round[i];
    }
  }

  // Return the address of elements [first, first + count) of the input. Return null unless a single tensor contains all of them.
  static const std::byte* in_one(const Segments& s, size_t first, size_t count, size_t element) {
    for (const Segments::Piece& piece : s.pieces) {
      if (first < piece.count) return piece.in && count <= piece.count - first ? piece.in + first * element : nullptr;
      first -= piece.count;
    }
    return nullptr;
  }

  std::span<const std::byte* const> sources(const std::byte* first, size_t bytes, size_t ranks) {
    sources_.clear();
    for (size_t i = 0; i < ranks; ++i) sources_.push_back(first + i * bytes);
    return sources_;
  }

  mpi::Session* session_;
  const bool reduces_;
  MpiCalls calls_;
  std::unique_ptr<Backend> host_;
  std::vector<size_t> parts_, own_, remote_;
  std::vector<const std::byte*> sources_;
};

}  // namespace

std::unique_ptr<Backend> make_mpi_backend(mpi::Session* session, std::vector<int> world, bool reduces, std::unique_ptr<Backend> host) {
  return std::make_unique<MpiBackend>(session, std::move(world), reduces, std::move(host));
}

}  // namespace hvd
