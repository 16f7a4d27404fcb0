// Allreduce through one rank: all ranks send their data to rank 0, which adds them and sends the result to all. This is
// what a program without collectives would do, and the cost of a parameter server on one host: rank 0's connections
// carry P - 1 times the data each way while the others wait. For comparison only; the table never chooses it.
//
// Cost: (P-1) * (2 * alpha + N * (2 * beta + gamma)), all of it at rank 0. Large data go in rounds, to bound the memory
// for contributions that wait for the reduction.
// Order of the reduction: the canonical order (collectives/reduce.h). 16-bit floats are sent unchanged and added in
// float32.
// Source: the definition of the operation.
#include <algorithm>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/pairwise.h"

namespace hvd {
namespace {

constexpr int kDriver = 0;

class Driver {
 public:
  Driver(Comm& comm, size_t block, DType d, ReduceOp op)
      : comm_(comm), dtype_(d), op_(op), theirs_(comm.scratch->get(kSlotTheirs, comm.size * block)), block_(block), sources_(comm.size),
        transfers_(comm.size) {}

  Status round(Bytes mine) {
    for (int i = 0; i < comm_.size; ++i) {
      const Bytes place(theirs_ + i * block_, mine.size());
      sources_[i] = i == comm_.rank ? mine.data() : place.data();
      transfers_[i] = {i, {}, i == comm_.rank ? Bytes() : place};
    }
    HVD_RETURN_IF_ERROR(exchange_all(comm_, transfers_));
    reduce_many(dtype_, op_, mine.data(), sources_, mine.size() / size_of(dtype_), {});
    for (int i = 0; i < comm_.size; ++i) transfers_[i] = {i, i == comm_.rank ? ConstBytes() : ConstBytes(mine), {}};
    return exchange_all(comm_, transfers_);
  }

 private:
  Comm& comm_;
  DType dtype_;
  ReduceOp op_;
  std::byte* theirs_;
  size_t block_;  // bytes per round
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
    return rounds([&](Bytes mine) { return driver.round(mine); });
  }
  return rounds([&](Bytes mine) -> Status {
    HVD_RETURN_IF_ERROR(send_to(comm, kDriver, mine));
    return recv_from(comm, kDriver, mine);
  });
}

}  // namespace hvd
