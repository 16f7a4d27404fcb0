// Running a schedule on one rank: telling the others how far we are ready, learning how far everybody is, and getting out of it
// together. Three ways, one interface:
//   - all ranks on one node: each has a word in shared memory (schedule id, frozen, position). To leave, a rank freezes its word; all
//     others see it and freeze theirs; frozen words no longer move, so everybody computes the same last position from them.
//   - several nodes: positions go to the coordinator, which answers how far to go, and which decides the last position.
//   - every rank alone on its node, all buckets on everybody's set: ranks vote on each position by a guard (engine/guard.h), which tells
//     everybody how far to go or that the schedule ends here. The coordinator only spreads the word that somebody wants out, so that
//     ranks which have nothing to vote for come and vote against.
// In all, a bucket that any rank has started is started by all.
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
  // This rank is ready for all positions below `position`.
  void publish(uint64_t position);
  // May the bucket at `position` start? Everybody who takes part is ready.
  bool may_run(uint64_t position) const;
  bool must_publish(uint64_t position) const { return !guarded() && !frozen_ && (!published_ || position != position_); }
  bool frozen() const { return frozen_; }
  // Since when this rank waits for the others' answers.
  Clock::time_point frozen_since() const { return frozen_since_; }
  // Leave the schedule: this rank does something else (or another wants out).
  void revoke(bool stuck);
  // Somebody wants out and I have not answered yet.
  bool leaving_elsewhere() const;
  // The schedule ends at this position, which everybody knows by now. False: not (yet) known.
  bool final_position(uint64_t* position) const;

  // Whose answers are missing before the schedule can end, as numbers and in words; none and "" where nobody here knows.
  std::vector<int> silent() const;
  std::string waits_for() const;

  // Several nodes: the coordinator's frames. Guarded, `position` means nothing in the second.
  void on_go(uint64_t position) { go_ = position; }
  void on_revoked(uint64_t position);
  // Guarded: everybody is ready for all positions below `agreed`, or (agreed <= position) the schedule ends at `position`.
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
  bool told_ = false;  // guarded: that somebody wants out
  bool frozen_ = false;
  Clock::time_point frozen_since_{};
  uint64_t position_ = 0;
  bool published_ = false;
  uint64_t go_ = 0;
  int64_t final_ = -1;
};

}  // namespace hvd
