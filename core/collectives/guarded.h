// Guarded allreduce: the messages that carry an allreduce also carry the vote on whether it takes place. It is a
// recursive doubling in which each message starts with the schedule position below which its senders are ready, and
// every rank keeps the minimum. After log2(P) steps every rank knows the minimum over all ranks and, if all were ready,
// the reduction of all data. If some rank was not ready, all ranks learn it at the same step. No tensor was changed
// then, because the data were a copy.
//
// A rank may be arbitrarily late, depending on its program, so this collective never blocks: advance() makes the
// progress that is possible at the moment.
//
// The cost, in the symbols of plan/cost.h, is log2(P) * (alpha + N * (beta + gamma)), with two more steps if P is not a
// power of two (collectives/flow.h). Values are added in the canonical order (collectives/reduce.h).
// The source of recursive doubling is given in allreduce_recursive_doubling.cc. Adding the vote as a second, small
// operand of a global reduction is a standard construction.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "collectives/comm.h"

namespace hvd {

// Header in front of the data of every message. Like the data, it is in native byte order.
struct GuardHeader {
  uint64_t schedule = 0;
  uint64_t position = 0;  // Schedule position that the ranks vote on.
  // The senders are ready for all positions below this. If it equals `position`, the operation does not take place.
  uint64_t ready = 0;
  uint32_t bytes = 0;     // size of the data that follow the header
  uint32_t step = 0;
};
static_assert(sizeof(GuardHeader) == 32);

class GuardedAllreduce {
 public:
  // Start a vote on `position` of `schedule`. The message carries `count` values of `acc`, an accumulation type. All
  // ranks must pass the same count; 0 means a vote without data. Return the memory for this rank's values: the caller
  // fills it before advance() and finds the result in it at the end. It stays valid until the next begin(), and other
  // collectives do not touch it.
  std::byte* begin(Comm& comm, uint64_t schedule, uint64_t position, uint64_t ready, size_t count, DType acc, ReduceOp op);
  // Send and receive what is possible now, without blocking. An error ends the job.
  Status advance(bool* moved);

  bool under_way() const { return at_ < steps_.size(); }
  // Return the result of the vote: all positions below it take place. If it is not above the position voted on, that
  // operation does not take place.
  uint64_t agreed() const { return header().ready; }
  uint64_t position() const { return position_; }

  // Append the file descriptors on which to sleep while advance() moves nothing.
  void poll_fds(std::vector<std::pair<int, short>>& fds) const;
  // Return a description for messages, for example "data from rank 3".
  std::string waits_for() const;

 private:
  enum class Then : uint8_t { nothing, combine_mine_first, combine_theirs_first, take };
  struct Step {
    int peer;
    uint32_t number;  // step number, which is equal on both sides
    bool sends;
    Then then;        // what to do with the received message; `nothing` if no message is received
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
  std::byte *mine_ = nullptr, *theirs_ = nullptr;  // messages, each consisting of header and data
  ConstBytes out_;
  Bytes in_;
};

}  // namespace hvd
