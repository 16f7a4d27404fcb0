// Naive allreduce for comparison only. Every rank sends all its data to every other rank and adds all contributions
// itself. It takes a single step, in which each rank sends P - 1 times its data. The algorithm table never chooses it.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): (P-1) * (alpha + N * (beta + gamma)). The latencies (alpha) overlap
// within a window of peers. Large data are sent in rounds, which bounds the memory for contributions that have not been added yet. Values
// are added in the canonical order (collectives/reduce.h). 16-bit floats are sent unchanged and added in float32.
#include <algorithm>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {

Status allreduce_naive(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const size_t n = static_cast<size_t>(comm.size), element = size_of(d);
  const size_t block = std::min(count, block_of_contributions(n) / element);
  std::byte* remote = comm.scratch->get(kSlotTheirs, n * block * element);
  auto** sources = reinterpret_cast<const std::byte**>(comm.scratch->get(kSlotSources, n * sizeof(std::byte*)));
  for (size_t first = 0; first < count; first += block) {
    const Bytes own(data + first * element, std::min(block, count - first) * element);
    for (size_t i = 0; i < n; ++i) sources[i] = remote + i * block * element;
    auto transfer = [&](int peer) { return Transfer{peer, own, Bytes(remote + static_cast<size_t>(peer) * block * element, own.size())}; };
    HVD_RETURN_IF_ERROR(with_every_peer(comm, transfer));
    sources[comm.rank] = own.data();
    reduce_many(d, op, own.data(), {sources, n}, own.size() / element, {});
  }
  return {};
}

// Allreduce through one rank, for comparison only. All ranks send their data to rank 0, which adds them and sends the
// result to all. A program without collectives would do this, and a parameter server on one host has the same cost:
// rank 0's connections carry P - 1 times the data each way while the other ranks wait. The algorithm table never
// chooses it.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): (P-1) * (2 * alpha + N * (2 * beta + gamma)), all of it at rank 0.
// Large data are sent in rounds, which bounds the memory for contributions that have not been added yet. Values are added in the canonical
// order (collectives/reduce.h). 16-bit floats are sent unchanged and added in float32.

namespace {

constexpr int kDriver = 0;

class Driver {
 public:
  Driver(Comm& comm, size_t block, DType d, ReduceOp op)
      : comm_(comm), dtype_(d), op_(op), remote_(comm.scratch->get(kSlotTheirs, comm.size * block)), block_(block), sources_(comm.size),
        transfers_(comm.size) {}

  Status round(Bytes own) {
    for (int i = 0; i < comm_.size; ++i) {
      const Bytes place(remote_ + i * block_, own.size());
      sources_[i] = i == comm_.rank ? own.data() : place.data();
      transfers_[i] = {i, {}, i == comm_.rank ? Bytes() : place};
    }
    HVD_RETURN_IF_ERROR(exchange_all(comm_, transfers_));
    reduce_many(dtype_, op_, own.data(), sources_, own.size() / size_of(dtype_), {});
    for (int i = 0; i < comm_.size; ++i) transfers_[i] = {i, i == comm_.rank ? ConstBytes() : ConstBytes(own), {}};
    return exchange_all(comm_, transfers_);
  }

 private:
  Comm& comm_;
  DType dtype_;
  ReduceOp op_;
  std::byte* remote_;
  // Maximum number of data bytes processed per round.
  size_t block_;
  std::vector<const std::byte*> sources_;
  std::vector<Transfer> transfers_;
};

}  // namespace

Status allreduce_driver(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const size_t bytes = count * size_of(d);
  const size_t block = std::min(bytes, block_of_contributions(comm.size));
  auto rounds = [&](auto&& round) -> Status {
    for (size_t first = 0; first < bytes; first += block) {
      HVD_RETURN_IF_ERROR(round(Bytes(data + first, std::min(block, bytes - first))));
    }
    return {};
  };
  if (comm.rank == kDriver) {
    Driver driver(comm, block, d, op);
    return rounds([&](Bytes own) { return driver.round(own); });
  }
  return rounds([&](Bytes own) -> Status {
    HVD_RETURN_IF_ERROR(send_to(comm, kDriver, own));
    return recv_from(comm, kDriver, own);
  });
}

// Tree reduction and tree broadcast, for comparison only. Neighbours combine their values, then neighbours among the
// remaining ranks, until rank 0 has the sum. A binomial broadcast then sends the result to all ranks. Both phases take
// the minimum number of steps, but each step sends whole vectors, and half of the ranks are idle after the first step.
// The algorithm table never chooses it, because recursive doubling takes half the steps.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): ceil(log2(P)) * (2 * alpha + N * (2 * beta + gamma)). Values are
// added in the canonical order (collectives/reduce.h). If P is not a power of two, some pairs of ranks first combine their values (class
// Fold), which needs no extra step. On the way up, sums of 16-bit floats are sent as float32, and original values as 16 bits. Source: R.
// Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005 (binomial reduce
// and broadcast).

namespace {

// Reduce the values of all ranks to rank 0, which is the root of the tree.
Status reduce_up(Comm& comm, const Fold& fold, const AllreduceValues& v, ReduceOp op) {
  for (int distance = 1; distance < fold.places; distance *= 2) {
    const int place = fold.place ^ distance, peer = fold.rank_at(place);
    auto sum = [&](int place_of_it) { return distance > 1 || fold.begins_with_sum(place_of_it); };
    if (fold.place & distance) return send_to(comm, peer, v.outgoing(sum(fold.place), 0, v.count));
    HVD_RETURN_IF_ERROR(exchange_combine(comm, peer, {}, peer, v.own(0, v.count), v.combine(sum(place), op, false)));
  }
  return {};
}

}  // namespace

Status allreduce_tree(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const Fold fold = Fold::of(comm.rank, comm.size);
  const AllreduceValues v = AllreduceValues::of(comm, data, count, d);
  HVD_RETURN_IF_ERROR(fold_in(comm, fold, v, op));
  if (fold.place >= 0) HVD_RETURN_IF_ERROR(reduce_up(comm, fold, v, op));
  if (comm.rank == 0) narrowed(data, v.wide, 0, count, d);
  return broadcast_tree(comm, data, count * size_of(d), 0);
}

}  // namespace hvd
