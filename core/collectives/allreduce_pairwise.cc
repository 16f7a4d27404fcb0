// Direct reduce-scatter, then direct allgather. Every rank owns a slice of the data. It sends every other rank the data
// for that rank's slice, reduces all contributions to its own slice, and sends the result to all ranks. For any P, this
// takes two rounds of messages and no forwarding. The owner of a slice has all contributions, so it can add them in the
// canonical order. The algorithm suits large data on few ranks.
//
// Reduce-scatter and allgather overlap. On each connection, the result is sent after the contribution. A block of the
// result is sent as soon as all contributions to it have been added, while contributions to later blocks are still in
// flight. Connections are then busy in both directions all the time. Only one block per peer waits to be added, and
// these blocks fit in the cache.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): 2 (P-1) * alpha + 2 (P-1)/P * N * beta + (P-1)/P * N * gamma. The
// latencies (alpha) overlap, and so do all additions except those of the last block. 16-bit floats are sent as 16 bits both ways: the ranks
// exchange only original values and final results, while the sums stay with the owner. Source: the pairwise exchange for reduce-scatter in
// R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.
#include <algorithm>
#include <new>

#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {
namespace {

// Size in bytes of all blocks that wait to be added, one per peer.
constexpr size_t kBlocks = 256 << 10;
constexpr size_t kBlockLeast = 16 << 10, kBlockMost = 128 << 10;
constexpr size_t kAlign = 64;

// Data in flight between this rank and one peer.
struct Exchange {
  int peer;
  // Part of this rank's contribution that has not yet been sent to the peer.
  ConstBytes give;
  // Receive buffer for one block of the peer's contribution.
  Bytes block;
  // Part of the current block that has not yet arrived.
  Bytes missing;
  // Bytes of this rank's result that have been sent to the peer.
  size_t sent = 0;
  // Part of the peer's result that has not yet arrived.
  Bytes result;
};

class Direct {
 public:
  // Contributions have type `d`, and the result has type `out`. If the types are equal, both use the same memory. If not, the contributions
  // are float32 sums, and the result is 16-bit floats.
  Direct(Comm& comm, std::byte* data, DType d, std::byte* result, DType out, size_t count, ReduceOp op)
      : comm_(comm), dtype_(d), out_(out), op_(op) {
    auto slice_of = [&](std::byte* base, DType type, int i) {
      const size_t from = slice_at(count, comm.size, i), to = slice_at(count, comm.size, i + 1);
      return Bytes(base + from * size_of(type), (to - from) * size_of(type));
    };
    auto slice = [&](int i) { return slice_of(data, d, i); };
    own_ = slice(comm.rank);
    final_ = slice_of(result, out, comm.rank);
    const size_t peers = static_cast<size_t>(comm.size) - 1;
    block_ = std::clamp<size_t>(kBlocks / peers / kAlign * kAlign, kBlockLeast, kBlockMost);
    staging_ = comm.scratch->get(kSlotTheirs, peers * block_);
    sources_ = reinterpret_cast<const std::byte**>(comm.scratch->get(kSlotSources, comm.size * sizeof(std::byte*)));
    auto* memory = comm.scratch->get(kSlotCounts, peers * sizeof(Exchange));
    exchanges_ = {reinterpret_cast<Exchange*>(memory), peers};
    // Start with the next rank, so that the ranks do not all begin with the same peer.
    for (size_t i = 0; i < peers; ++i) {
      const int peer = (comm.rank + 1 + static_cast<int>(i)) % comm.size;
      new (&exchanges_[i]) Exchange{peer, slice(peer), {staging_ + i * block_, 0}, {}, 0, slice_of(result, out, peer)};
    }
    open_block();
  }

  Status run() {
    return pump(comm_, [this] { return text(); }, [this](bool& moved, bool& done) { return step(moved, done); });
  }

 private:
  Status step(bool& moved, bool& done) {
    bool complete = true, left = false;
    for (Exchange& e : exchanges_) {
      HVD_RETURN_IF_ERROR(send(e, moved));
      HVD_RETURN_IF_ERROR(receive(e, moved));
      complete = complete && e.missing.empty();
      left = left || waits_for(e) || owes(e);
    }
    if (complete && ready_ < own_.size()) {
      add_block();
      moved = left = true;
    }
    done = !left;
    return {};
  }

  Status send(Exchange& e, bool& moved) {
    HVD_RETURN_IF_ERROR(advance_out(comm_, e.peer, e.give, moved));
    if (!e.give.empty() || e.sent == final_ready()) return {};
    ConstBytes out = final_.first(final_ready()).subspan(e.sent);
    const size_t before = out.size();
    HVD_RETURN_IF_ERROR(advance_out(comm_, e.peer, out, moved));
    e.sent += before - out.size();
    return {};
  }

  // Receive the peer's contribution, then its result. The result overwrites the data that the peer has received from this rank, which is
  // safe: the peer sends a result only after it has received them.
  Status receive(Exchange& e, bool& moved) {
    if (!e.missing.empty()) return advance_in(comm_, e.peer, e.missing, moved);
    const bool contributed = ready_ + e.block.size() == own_.size();
    return contributed ? advance_in(comm_, e.peer, e.result, moved) : Status::Ok();
  }

  void open_block() {
    const size_t bytes = std::min(block_, own_.size() - ready_);
    for (Exchange& e : exchanges_) e.missing = e.block = {e.block.data(), bytes};
  }

  void add_block() {
    const size_t bytes = exchanges_[0].block.size();
    std::byte* target = own_.data() + ready_;
    for (const Exchange& e : exchanges_) sources_[e.peer] = e.block.data();
    sources_[comm_.rank] = target;
    reduce_many(dtype_, op_, target, {sources_, static_cast<size_t>(comm_.size)}, bytes / size_of(dtype_), {});
    if (out_ != dtype_) narrowed(final_.data(), own_.data(), ready_ / size_of(dtype_), bytes / size_of(dtype_), out_);
    ready_ += bytes;
    open_block();
  }

  bool waits_for(const Exchange& e) const { return !e.missing.empty() || !e.result.empty(); }
  bool owes(const Exchange& e) const { return !e.give.empty() || e.sent < final_.size(); }
  // Return how many bytes of the result are complete and can be sent.
  size_t final_ready() const { return ready_ / size_of(dtype_) * size_of(out_); }

  std::string text() const {
    // Name a rank whose contribution is missing, if there is one, because all other ranks wait for it.
    for (const Exchange& e : exchanges_) {
      if (!e.missing.empty()) return pending_text(comm_, e.peer, !e.give.empty(), e.peer, true);
    }
    for (const Exchange& e : exchanges_) {
      if (waits_for(e)) return pending_text(comm_, e.peer, !e.give.empty() || e.sent < final_ready(), e.peer, true);
    }
    for (const Exchange& e : exchanges_) {
      if (owes(e)) return pending_text(comm_, e.peer, true, e.peer, false);
    }
    return "data";
  }

  Comm& comm_;
  DType dtype_, out_;
  ReduceOp op_;
  // Data of the slice that this rank owns.
  Bytes own_;
  // Memory for the result of this rank's slice.
  Bytes final_;
  // Number of bytes of the slice that are reduced at a time.
  size_t block_ = 0;
  // Number of bytes of this rank's slice that have been reduced.
  size_t ready_ = 0;
  std::byte* staging_ = nullptr;
  const std::byte** sources_ = nullptr;
  std::span<Exchange> exchanges_;
};

// Variant of the algorithm for many ranks. It completes the reduce-scatter before the allgather, and exchanges data with only one window of
// peers at a time.
Status in_windows(Comm& comm, std::byte* data, DType d, std::byte* result, DType out, size_t count, ReduceOp op) {
  auto* counts = reinterpret_cast<size_t*>(comm.scratch->get(kSlotCounts, comm.size * sizeof(size_t)));
  for (int i = 0; i < comm.size; ++i) counts[i] = slice_at(count, comm.size, i + 1) - slice_at(count, comm.size, i);
  auto slice = [&](int i) { return Bytes(result + slice_at(count, comm.size, i) * size_of(out), counts[i] * size_of(out)); };
  const size_t begin = slice_at(count, comm.size, comm.rank);
  HVD_RETURN_IF_ERROR(reducescatter_pairwise(comm, data, data + begin * size_of(d), {counts, static_cast<size_t>(comm.size)}, d, op, {}));
  if (out != d) narrowed(result, data, begin, counts[comm.rank], out);
  const Bytes own = slice(comm.rank);
  return with_every_peer(comm, [&](int peer) { return Transfer{peer, own, slice(peer)}; });
}

}  // namespace

Status allreduce_pairwise(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  if (comm.size > kPairwiseWindow) return in_windows(comm, data, d, data, d, count, op);
  return Direct(comm, data, d, data, d, count, op).run();
}

Status allreduce_pairwise_sums(Comm& comm, float* sums, std::byte* result, size_t count, DType d, ReduceOp op) {
  if (count == 0) return {};
  auto* bytes = reinterpret_cast<std::byte*>(sums);
  if (comm.size > kPairwiseWindow) return in_windows(comm, bytes, DType::float32, result, d, count, op);
  return Direct(comm, bytes, DType::float32, result, d, count, op).run();
}

}  // namespace hvd
