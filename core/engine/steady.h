// Progress of a running schedule on one rank: publish how far this rank is ready, learn how far all ranks are, and
// leave the schedule together. Three implementations behind one interface:
//   - all ranks on one node: each has a word in shared memory (schedule id, frozen, position). To leave, a rank freezes its
//     word; the others see it and freeze theirs. Frozen words no longer change, so all ranks compute the same last position.
//   - several nodes: positions go to the coordinator, which answers how far to go and decides the last position.
//   - every rank alone on its node, all buckets on the global set: ranks vote on each position (engine/guard.h), and the vote
//     tells how far to go or that the schedule ends here. The coordinator only spreads that a rank wants to leave, so that
//     ranks with nothing to vote on vote against.
// In all three, if any rank has started a bucket, every rank starts it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "agree/schedule.h"
#include "agree/steady_word.h"
#include "base/deadline.h"
#include "engine/control.h"
#include "engine/world.h"

namespace hvd {

class Steady {
 public:
  // `members[b]`: global ranks of the set of bucket b.
  Steady(std::shared_ptr<const Schedule> schedule, std::vector<std::vector<int>> members, World* world, Control* control);

  uint64_t id() const { return schedule_->id; }
  const Schedule& schedule() const { return *schedule_; }
  bool guarded() const { return way_ == Way::guarded; }
  // Publish that this rank is ready for all positions below `position`.
  void publish(uint64_t position);
  // True if every member is ready, so that the bucket at `position` may start.
  bool may_run(uint64_t position) const;
  bool must_publish(uint64_t position) const { return !guarded() && !frozen_ && (!published_ || position != position_); }
  bool frozen() const { return frozen_; }
  // Since when this rank waits for the other ranks' answers.
  Clock::time_point frozen_since() const { return frozen_since_; }
  // Ask to leave the schedule, because this rank deviates or another rank wants to leave.
  void revoke(bool stuck);
  // True if another rank wants to leave and this rank has not answered yet.
  bool leaving_elsewhere() const;
  // Get the position at which the schedule ends and which every rank knows by now. False if it is not known yet.
  bool final_position(uint64_t* position) const;

  // The ranks whose answers are missing before the schedule can end, as numbers and as text; empty if not known on this
  // rank.
  std::vector<int> silent() const;
  std::string waits_for() const;

  // Frames from the coordinator. In guarded mode `position` of on_revoked() is meaningless.
  void on_go(uint64_t position) { go_ = position; }
  void on_revoked(uint64_t position);
  // Guarded: every rank is ready for all positions below `agreed`; or, if agreed <= position, the schedule ends at
  // `position`.
  void on_vote(uint64_t position, uint64_t agreed);

 private:
  SteadyWord word(int local_rank) const;
  void tell(bool frozen, Mood mood);

  std::shared_ptr<const Schedule> schedule_;
  std::vector<std::vector<int>> members_;
  World* world_;
  Control* control_;
  enum class Way { shared, coordinated, guarded };
  static Way way_for(const World& world, const Schedule& schedule);
  Way way_;
  bool told_ = false;  // guarded: a rank wants to leave
  bool frozen_ = false;
  Clock::time_point frozen_since_{};
  uint64_t position_ = 0;
  bool published_ = false;
  uint64_t go_ = 0;
  int64_t final_ = -1;
};

}  // namespace hvd
