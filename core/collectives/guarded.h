// Guarded allreduce: the messages of an allreduce also carry the vote on whether the allreduce takes place. The
// algorithm is recursive doubling. Each message starts with the schedule position below which its sender is ready, and
// so are all ranks from which the sender has already received. Every rank keeps the minimum of the positions that it
// receives. After log2(P) steps, every rank has the minimum over all ranks. If all ranks were ready, every rank also
// has the reduction of all data. If some rank was not ready, all ranks find out in the same step. No tensor has changed
// then, because the data were a copy.
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
  // Position below which the sender is ready, and so are all ranks from which it has received. If it equals `position`,
  // the operation is not executed.
  uint64_t ready = 0;
  // Bytes of data that follow the header.
  uint32_t bytes = 0;
  uint32_t step = 0;
};
static_assert(sizeof(GuardHeader) == 32);

class GuardedAllreduce {
 public:
  // Start a vote on `position` of `schedule`. The message carries `count` values of the accumulation type `acc`. All
  // ranks must pass the same count; 0 means a vote without data. Return the memory for this rank's values. The caller
  // fills it before advance(), and finds the result in it at the end. The memory stays valid until the next begin(),
  // and other collectives do not use it.
  std::byte* begin(Comm& comm, uint64_t schedule, uint64_t position, uint64_t ready, size_t count, DType acc, ReduceOp op);
  // Send and receive as much as possible without blocking. An error ends the job.
  Status advance(bool* moved);

  bool under_way() const { return at_ < steps_.size(); }
  // Return the result of the vote on position(). Operations at all positions below the result are executed. If the
  // result does not exceed position(), the operation at that position is not executed.
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
    // What to do with the received message. `nothing` means that no message is received in this step.
    Then then;
  };
  void plan();
  void start_step();
  Status finish_step();
  Status check(const GuardHeader& theirs) const;
  GuardHeader& header() const;

  Comm* comm_ = nullptr;
  uint64_t schedule_ = 0, position_ = 0;
  size_t count_ = 0, bytes_ = 0;
  DType acc_ = DType::float32;
  ReduceOp op_ = ReduceOp::sum;
  std::vector<Step> steps_;
  size_t at_ = 0;
  // Memory of the outgoing and the incoming message. Each message is a header followed by data.
  std::byte *mine_ = nullptr, *theirs_ = nullptr;
  ConstBytes out_;
  Bytes in_;
};

}  // namespace hvd
