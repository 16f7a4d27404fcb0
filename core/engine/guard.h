// The guard of a schedule's bucket in a world in which every rank is alone on its node: all ranks vote on whether the bucket's position
// takes place, by a guarded allreduce (collectives/guarded.h). A rank votes when it has something to say: that its part of the bucket is
// submitted, or that it wants to leave the schedule. An allreduce that is small enough, and a barrier, is over when the vote is;
// everything else follows as usual.
//
// A vote may last for as long as a program is late, so nothing here blocks, and only who has been told to leave is given a time.
#pragma once
#include "agree/schedule.h"
#include "backends/backend.h"
#include "base/deadline.h"
#include "collectives/guarded.h"
#include "engine/execute.h"
#include "engine/world.h"

namespace hvd {

class Guard {
 public:
  // `timeout`: seconds without progress after which a rank that was told to leave and says nothing is an error.
  Guard(World* world, Backend* backend, Executor* executor, double timeout)
      : world_(world), backend_(backend), executor_(executor), timeout_(timeout) {}

  // Votes on `position` of `schedule`: this rank is ready for all positions below `ready`, or (ready == position) wants to leave.
  // `operations`: of the bucket there; not looked at by who leaves.
  void begin(const Schedule& schedule, uint64_t position, uint64_t ready, const std::vector<Operation*>& operations);
  // Never blocks. `hurry`: everybody has been told to vote. An error means that the job is over.
  Status advance(bool hurry, bool* moved);
  bool under_way() const { return vote_.under_way(); }

  // Once it is not under way any more:
  uint64_t position() const { return vote_.position(); }
  uint64_t agreed() const { return vote_.agreed(); }
  // Was the bucket's operation part of it? Then, if agreed on, this is what remains to do.
  bool carries() const { return carries_; }
  void deliver(const Response& response, const std::vector<Operation*>& operations) { executor_->deliver(response, operations, values_); }

  void poll_fds(std::vector<std::pair<int, short>>& fds) const { vote_.poll_fds(fds); }
  double patience_left() const;  // seconds

 private:
  World* world_;
  Backend* backend_;
  Executor* executor_;
  const double timeout_;
  GuardedAllreduce vote_;
  std::byte* values_ = nullptr;
  bool carries_ = false;
  bool hurry_ = false;
  Clock::time_point since_{};  // with hurry_: the last progress
};

}  // namespace hvd
