// NodeGroup: the members of one process set on one host, and how they keep step through shared memory.
//
// Each member counts the stages that it has finished in one counter on a cache line of its own; others wait for that counter.
// All members run the same collectives in the same order and every collective has a number of stages that follows from its
// arguments alone, so `base + k` means the same stage for everybody.
//
//   Each collective: begin() -> half of the staging area; publish() after each stage; await(member, stage); finish().
//
// Staging: every rank has one area that the others read, cut into two halves that successive operations of a group use in turn. begin()
// waits until everybody is done with the operation that used the half before (two operations ago, or in another process set), which in
// steady state has long happened. finish() publishes the stage "I touch nobody's memory of this operation any more".
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/segment.h"
#include "transport/waiter.h"

namespace hvd {

// The members' counters, in set order. They live in the segment and so outlast the group.
using ProgressCounters = std::vector<std::atomic<uint64_t>*>;

// One per rank and engine, shared by all its groups: who used which half of this rank's staging area last, and how much was reduced
// without it.
struct StagingLedger {
  std::atomic<uint64_t> unstaged{0};  // bytes reduced in the arenas
  struct Use {
    std::shared_ptr<const ProgressCounters> counters;  // null: nobody
    uint64_t done = 0;                                 // what they show once everybody has finished that use
  };
  Use half[2];
};

class NodeGroup {
 public:
  // `locals`: local ranks of the members in set order; `me`: my index among them; `bells`: of the members, same order.
  // `generation`: the same on all members and larger than that of any earlier group in this slot; counters start from it, so
  // that what an earlier group left in the slot counts as "not yet".
  NodeGroup(std::shared_ptr<Segment> segment, int set_slot, uint32_t generation, std::vector<int> locals, int me,
            std::vector<BellRef> bells, StagingLedger* ledger, Waiter* waiter, double timeout_seconds);
  int size() const { return static_cast<int>(locals_.size()); }
  int me() const { return me_; }

  struct Stage {
    std::byte* const* staging;  // [member] -> that member's half for this operation
    size_t bytes;               // of a half
  };
  // Starts a collective.
  Status begin(Stage* stage);
  // Everything that I stored so far is visible to whoever sees my counter; wakes members that sleep for it.
  void publish();
  // Waits until `member` (or everybody) has published `stage` stages (1-based) of this collective.
  Status await(int member, uint64_t stage);
  Status await_all(uint64_t stage);
  // Have they? Never waits.
  bool reached(int member, uint64_t stage) const { return progress(member).load(std::memory_order_seq_cst) >= base_ + stage; }
  // Ends the collective after `published` stages of mine (publishes one more: done).
  void finish();
  // Ends it as if I had published `stages` stages (at least those that I have): where members give up after unequally many.
  void finish_at(uint64_t stages);

  // A member's arena (Segment::arena), null without.
  std::byte* arena(int member) const { return segment_->arena(locals_[member]); }
  size_t arena_bytes() const { return segment_->spec().arena_bytes; }
  void count_unstaged(size_t bytes) { ledger_->unstaged.fetch_add(bytes, std::memory_order_relaxed); }

  Waiter& waiter() const { return *waiter_; }

 private:
  std::atomic<uint64_t>& progress(int member) const { return *(*counters_)[member]; }

  std::shared_ptr<Segment> segment_;
  std::vector<int> locals_;
  std::shared_ptr<const ProgressCounters> counters_;
  int me_;
  std::vector<BellRef> bells_;
  StagingLedger* ledger_;
  Waiter* waiter_;
  double timeout_;
  uint64_t base_ = 0;   // my counter when this collective began
  uint64_t mine_ = 0;   // my counter
  uint64_t operations_ = 0;
  int half_ = 0;
  std::vector<std::byte*> staging_;
};

}  // namespace hvd
