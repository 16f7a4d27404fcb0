// Guarded allreduce: an allreduce by recursive doubling whose messages also carry a vote on whether it takes place. Each message starts
// with the schedule position below which its sender, and all ranks from which it has received, are ready. Every rank keeps the minimum of
// these positions, which after log2(P) steps is the minimum over all ranks. If all ranks were ready, every rank then also has the reduced
// data. If not, all ranks know it, and no tensor has changed, because the data were a copy.
//
// Ranks can be arbitrarily late, depending on their programs, so this collective never blocks. advance() makes as much
// progress as possible and returns.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): log2(P) * (alpha + N * (beta + gamma)), with two more steps if P is
// not a power of two (collectives/flow.h). Values are added in the canonical order (collectives/reduce.h). For the source of recursive
// doubling, see allreduce_recursive_doubling.cc. Adding a vote as a second, small operand of a global reduction is a standard construction.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "collectives/comm.h"

namespace hvd {

// Header in front of the data of every message. Like the data, the header is in native byte order.
struct GuardHeader {
  uint64_t schedule = 0;
  // Schedule position that the ranks vote on.
  uint64_t position = 0;
  // Position below which the sender, and all ranks from which it has received, are ready. If it equals `position`, some rank is not ready.
  uint64_t ready = 0;
  // Bytes of data that follow the header.
  uint32_t bytes = 0;
  uint32_t step = 0;
};
static_assert(sizeof(GuardHeader) == 32);

class GuardedAllreduce {
 public:
  // Start a vote on `position` of `schedule`. Each message carries `count` values of the accumulation type `acc`. All ranks must pass the
  // same count; 0 means a vote without data. Return memory for this rank's values, which the caller fills before advance() and which holds
  // the result at the end. It stays valid until the next begin().
  std::byte* begin(Comm& comm, uint64_t schedule, uint64_t position, uint64_t ready, size_t count, DType acc, ReduceOp op);
  // Send and receive as much as possible without blocking. An error ends the job.
  Status advance(bool* moved);

  bool under_way() const { return at_ < steps_.size(); }
  // Return the result of the vote: all ranks are ready for the positions below it, so the operations there are executed. If the result is
  // not above position(), the operation at position() is not executed.
  uint64_t agreed() const { return header().ready; }
  uint64_t position() const { return position_; }

  // Append the file descriptors to poll while advance() makes no progress.
  void poll_fds(std::vector<std::pair<int, short>>& fds) const;
  // Describe for error messages what advance() waits for, for example "data from rank 3".
  std::string waits_for() const;

 private:
  enum class Then : uint8_t { nothing, combine_mine_first, combine_theirs_first, take };
  struct Step {
    int peer;
    // Number of the step. The two ranks that exchange messages in a step use the same number.
    uint32_t number;
    bool sends;
    // How to use the peer's data. `nothing` means that no message is received in this step.
    Then then;
  };
  void plan();
  void start_step();
  Status finish_step();
  Status check(const GuardHeader& remote) const;
  GuardHeader& header() const;

  Comm* comm_ = nullptr;
  uint64_t schedule_ = 0, position_ = 0;
  size_t count_ = 0, bytes_ = 0;
  DType acc_ = DType::float32;
  ReduceOp op_ = ReduceOp::sum;
  std::vector<Step> steps_;
  size_t at_ = 0;
  // Memory of the outgoing and the incoming message. Each message is a header followed by data.
  std::byte *own_ = nullptr, *remote_ = nullptr;
  ConstBytes out_;
  Bytes in_;
};

}  // namespace hvd
