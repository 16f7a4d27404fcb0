// Progress of a running schedule on one rank. This class publishes the position below which this rank is ready, determines the position
// below which all ranks are ready, and lets all ranks leave the schedule together. There are three implementations behind one interface:
//   - If all ranks are on one node, each rank has a word in shared memory (schedule id, frozen, position). To leave, a
//     rank freezes its word; the others see this and freeze theirs. Frozen words no longer change, so all ranks compute
//     the same last position.
//   - With several nodes, ranks send their positions to the coordinator. It answers how far to go and decides the last position.
//   - If every rank is alone on its node and all buckets are on the global set, ranks vote on each position
//     (ReadinessVote). The result is either how far to go or that the schedule ends here. The coordinator only reports
//     that a rank wants to leave. Ranks with nothing to vote on then vote against the position.
// In all three, if any rank has started a bucket, every rank starts it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agree/schedule.h"
#include "agree/schedule_word.h"
#include "backends/backend.h"
#include "base/deadline.h"
#include "collectives/guarded.h"
#include "engine/connections.h"
#include "engine/control.h"
#include "engine/execute.h"

namespace hvd {

class ScheduleSync {
 public:
  // `members[b]` lists the global ranks in the process set of bucket b.
  ScheduleSync(std::shared_ptr<const Schedule> schedule, std::vector<std::vector<int>> members, Connections* connections, Control* control);

  uint64_t id() const { return schedule_->id; }
  const Schedule& schedule() const { return *schedule_; }
  bool guarded() const { return mode_ == Mode::guarded; }
  bool shared() const { return mode_ == Mode::shared; }
  // Publish that this rank is ready for all positions below `position`.
  void publish(uint64_t position);
  // True if every rank of the set is ready, so that the bucket at `position` can start.
  bool may_run(uint64_t position) const;
  bool must_publish(uint64_t position) const { return !guarded() && !frozen_ && (!published_ || position != position_); }
  bool frozen() const { return frozen_; }
  // Return the time at which this rank started to leave the schedule. From then on, its position is frozen, and it waits for the answers of
  // other ranks.
  Clock::time_point frozen_since() const { return frozen_since_; }
  // Ask to leave the schedule, because this rank cannot follow it or another rank wants to leave.
  void revoke(bool stuck);
  // True if another rank wants to leave and this rank has not answered yet.
  bool leaving_elsewhere() const;
  // Get the position at which the schedule ends. Return false as long as it is unknown.
  bool final_position(uint64_t* position) const;

  // While a schedule is ending, return the ranks that have not answered yet, as numbers (silent) or as text (waits_for). The result is
  // empty if they are unknown to this rank.
  std::vector<int> silent() const;
  std::string waits_for() const;

  // Handle messages from the coordinator. In guarded mode, a vote determines where the schedule ends, so on_revoked() ignores `position`.
  void on_go(uint64_t position) { go_ = position; }
  void on_revoked(uint64_t position);
  // Handle the result of a vote in guarded mode. If agreed > position, every rank is ready for all positions below
  // `agreed`. If not, the schedule ends at `position`.
  void on_vote(uint64_t position, uint64_t agreed);

 private:
  ScheduleWord word(int local_rank) const;
  void publish(bool frozen, SleepState sleep_state);

  std::shared_ptr<const Schedule> schedule_;
  std::vector<std::vector<int>> members_;
  Connections* connections_;
  Control* control_;
  enum class Mode { shared, coordinated, guarded };
  static Mode mode_for(const Connections& connections, const Schedule& schedule);
  Mode mode_;
  // True if any rank wants to leave the schedule. Used only in guarded mode.
  bool reported_ = false;
  bool frozen_ = false;
  Clock::time_point frozen_since_{};
  uint64_t position_ = 0;
  bool published_ = false;
  uint64_t go_ = 0;
  int64_t final_ = -1;
};

// Readiness vote on a bucket, for jobs in which every rank is alone on its node. In a guarded allreduce (collectives/guarded.h), all ranks
// vote on whether to execute the bucket. A rank votes once it has submitted its operations of the bucket, or when it wants to leave the
// schedule. Small allreduces and barriers complete with the vote; other operations are executed after it.
//
// A vote completes only when the slowest program has submitted its operations, so these functions never block. The timeout applies only
// once every rank has been asked to leave the schedule.
class ReadinessVote {
 public:
  // `timeout` is in seconds. The vote fails if a rank that was asked to leave makes no progress for that long.
  ReadinessVote(Connections* connections, Backend* backend, Executor* executor, double timeout)
      : connections_(connections), backend_(backend), executor_(executor), timeout_(timeout) {}

  // Start the vote on `position` of `schedule`. If ready > position, this rank is ready for all positions below `ready`; `operations` are
  // then its operations of the bucket. If not, this rank wants to leave the schedule.
  void begin(const Schedule& schedule, uint64_t position, uint64_t ready, const std::vector<Operation*>& operations);
  // Make progress on the vote without blocking. `hurry` means that every rank has been asked to vote, so that the timeout applies. An error
  // ends the job.
  Status advance(bool hurry, bool* moved);
  bool under_way() const { return vote_.under_way(); }

  // Return the position of the vote, and its result, which is valid once under_way() is false.
  uint64_t position() const { return vote_.position(); }
  uint64_t agreed() const { return vote_.agreed(); }
  // True if the vote's messages include the bucket's data, so that deliver() is the only step left if all ranks agree.
  bool carries() const { return carries_; }
  void deliver(const Response& response, const std::vector<Operation*>& operations) { executor_->deliver(response, operations, values_); }

  void poll_fds(std::vector<std::pair<int, short>>& fds) const { vote_.poll_fds(fds); }
  // Return the seconds left until the timeout.
  double patience_left() const;

 private:
  Connections* connections_;
  Backend* backend_;
  Executor* executor_;
  const double timeout_;
  GuardedAllreduce vote_;
  std::byte* values_ = nullptr;
  bool carries_ = false;
  bool hurry_ = false;
  // Time of the last progress of the vote, or of the start of the timeout. Valid only while hurry_ is true.
  Clock::time_point since_{};
};

}  // namespace hvd
