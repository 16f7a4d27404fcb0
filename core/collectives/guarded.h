// A guarded allreduce: ranks agree on whether an operation takes place by the very messages that carry it out. Each message of a
// recursive doubling says, before the data, up to which position of a schedule its senders are ready; everybody keeps the least. After
// log2(P) steps every rank knows the least of all ranks, and the reduction of all data if everybody was ready. If somebody was not, all
// learn that together, and since the data was a copy nobody's memory has been touched.
//
// A rank may be late by as much as its program likes, so this collective does not block: advance() moves what can be moved.
//
// Cost: log2(P) * (alpha + N * (beta + gamma)), two steps more when P is not a power of two (collectives/fold.h).
// Order of the reduction: THE order (collectives/reduce.h).
// Source of recursive doubling: see allreduce_recursive_doubling.cc. That agreement (the least of all ranks' votes) can ride on an
// allreduce is the usual construction of a global reduction with a second, smaller operand.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "collectives/comm.h"

namespace hvd {

// In front of the data of every message; like these in the byte order of the machines.
struct GuardHeader {
  uint64_t schedule = 0;
  uint64_t position = 0;  // what is voted on
  uint64_t ready = 0;     // the senders are ready for all positions below this; `position`: for none, it does not take place
  uint32_t bytes = 0;     // of the data that follow
  uint32_t step = 0;
};
static_assert(sizeof(GuardHeader) == 32);

class GuardedAllreduce {
 public:
  // Takes part in the vote on `position` of `schedule`. The message carries `count` values of `acc`, an accumulation type; all ranks
  // say the same count, 0 where nothing rides along. Returns where this rank's values have to be written before advance(), and where
  // the result lies once done(); it stays until the next begin() and is not touched by other collectives.
  std::byte* begin(Comm& comm, uint64_t schedule, uint64_t position, uint64_t ready, size_t count, DType acc, ReduceOp op);
  // Moves what can be moved now; never blocks. After an error the job is over.
  Status advance(bool* moved);

  bool under_way() const { return at_ < steps_.size(); }
  // Once done: positions below this take place. Not above the position voted on: it does not.
  uint64_t agreed() const { return header().ready; }
  uint64_t position() const { return position_; }

  // What to sleep on while advance() moves nothing.
  void poll_fds(std::vector<std::pair<int, short>>& fds) const;
  // "data from rank 3"
  std::string waits_for() const;

 private:
  enum class Then : uint8_t { nothing, combine_mine_first, combine_theirs_first, take };
  struct Step {
    int peer;
    uint32_t number;  // the same on both sides
    bool sends;
    Then then;        // with what has been received; nothing: nothing is
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
  std::byte *mine_ = nullptr, *theirs_ = nullptr;  // messages: header, data
  ConstBytes out_;
  Bytes in_;
};

}  // namespace hvd
