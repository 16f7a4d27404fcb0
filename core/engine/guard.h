// Readiness vote on a bucket of a schedule, for jobs in which every rank is alone on its node. All ranks vote by a
// guarded allreduce (collectives/guarded.h) on whether the bucket's position is executed. A rank votes once it has
// submitted its part of the bucket or wants to leave the schedule. A small enough allreduce, or a barrier, completes
// with the vote; everything else is executed afterwards as usual.
//
// A vote lasts until the slowest program submits, so nothing here blocks, and the timeout applies only after every rank
// was told to leave.
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
  // `timeout`: seconds without progress after which a rank that was told to leave but does not vote is an error.
  Guard(World* world, Backend* backend, Executor* executor, double timeout)
      : world_(world), backend_(backend), executor_(executor), timeout_(timeout) {}

  // Start the vote on `position` of `schedule`. This rank is ready for all positions below `ready`, or, if ready ==
  // position, wants to leave. `operations`: those of the bucket; unused when leaving.
  void begin(const Schedule& schedule, uint64_t position, uint64_t ready, const std::vector<Operation*>& operations);
  // Advance the vote without blocking. `hurry`: every rank was told to vote, so the timeout applies. An error means
  // that the job is over.
  Status advance(bool hurry, bool* moved);
  bool under_way() const { return vote_.under_way(); }

  // Result; valid once the vote is no longer in flight.
  uint64_t position() const { return vote_.position(); }
  uint64_t agreed() const { return vote_.agreed(); }
  // True if the vote carried the bucket's data. Then, if all ranks agreed, only deliver() remains.
  bool carries() const { return carries_; }
  void deliver(const Response& response, const std::vector<Operation*>& operations) { executor_->deliver(response, operations, values_); }

  void poll_fds(std::vector<std::pair<int, short>>& fds) const { vote_.poll_fds(fds); }
  double patience_left() const;  // seconds until the timeout

 private:
  World* world_;
  Backend* backend_;
  Executor* executor_;
  const double timeout_;
  GuardedAllreduce vote_;
  std::byte* values_ = nullptr;
  bool carries_ = false;
  bool hurry_ = false;
  Clock::time_point since_{};  // time of the last progress, while hurry_ is set
};

}  // namespace hvd
