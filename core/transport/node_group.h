// A NodeGroup contains the ranks of one process set on one host. They synchronize through shared memory.
//
// A collective consists of stages. Each rank counts its finished stages in a counter on its own cache line, for which the others wait. All
// ranks run the same collectives in the same order, with a number of stages that depends only on the arguments. If the counter is `base` at
// the start of a collective, `base + k` thus means on every rank that k of its stages are finished.
//
// A collective first calls begin(), which returns half of the staging area. It calls publish() after each stage,
// await(member, stage) before it reads another rank's data, and finish() at the end.
//
// Every rank has a staging area that the others read. Successive operations of a group use its two halves in turn. begin() waits until all
// ranks have finished the previous operation in the same half, which rarely takes time: that was two operations ago, or in another process
// set. finish() publishes that this rank no longer accesses other ranks' memory for this operation. Collectives do not wait for this.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/segment.h"
#include "transport/waiter.h"

namespace hvd {

// Counters of the group's ranks in shared memory, in set order. They outlive the group.
using SetLines = std::vector<SetLine*>;

// State of a rank's staging area, shared by all of its groups.
struct StagingLedger {
  // Number of bytes reduced without staging, in place in the arenas.
  std::atomic<uint64_t> unstaged{0};
  struct Use {
    // Counters of the group that last used this half of the area, or null.
    std::shared_ptr<const SetLines> lines;
    // Value that a rank's SetLine::finished reaches once the rank no longer uses this half. 0 if no rank uses it.
    uint64_t done = 0;
  };
  Use half[2];
};

// Choice of how a rank stores data in its staging area. Normal stores are faster if the ranks share a cache. If not, they wait for the
// other ranks' copies of each cache line, and stores that bypass the cache are much faster. A virtual machine can move between both cases,
// so the choice follows measured times. Results do not depend on it.
class StoreChoice {
 public:
  // True if data must bypass the cache.
  bool bypass() const { return bypass_; }
  // True once in kTryEvery calls. The caller then stores a part of its data in each way and records both times.
  bool due() { return calls_++ % kTryEvery == 1; }
  // Record the times of stores of the same size, without and with bypassing.
  void record(double normal, double bypassing) {
    // A single interruption must not change the means much.
    for (auto [mean, time] : {std::pair{&normal_, normal}, {&bypassing_, bypassing}}) {
      *mean = *mean == 0 ? time : (*mean + std::min(time, 2 * *mean)) / 2;
    }
    // Data that bypassed the cache take longer to read, so require a large gain.
    bypass_ = 2 * bypassing_ < normal_;
  }

 private:
  static constexpr uint64_t kTryEvery = 32;
  bool bypass_ = false;
  uint64_t calls_ = 0;
  // Mean times, or 0 if unknown.
  double normal_ = 0, bypassing_ = 0;
};

class NodeGroup {
 public:
  // `locals` lists the group's local ranks in set order, `wakeups` has their wakeup events, and `me` is this rank's index. `generation` is
  // equal on all ranks and larger than that of any earlier group in this slot. Counters start from it, so values of an earlier group count
  // as "not reached".
  NodeGroup(std::shared_ptr<Segment> segment, int set_slot, uint32_t generation, std::vector<int> locals, int me,
            std::vector<WakeupEvent> wakeups, StagingLedger* ledger, Waiter* waiter, double timeout_seconds);
  int size() const { return static_cast<int>(locals_.size()); }
  int me() const { return me_; }

  struct Stage {
    // Staging memory of each rank for this operation: one half of its staging area.
    std::byte* const* staging;
    // Size in bytes of each rank's staging memory.
    size_t bytes;
    // Number of stages (0 or 1) that this rank has already published, by publish_early().
    size_t published = 0;
    // Number of earlier collectives of the group that used this half.
    uint64_t turn = 0;
  };
  // Start a collective and get the staging memory for it.
  Status begin(Stage* stage);
  // Start the next collective before it is certain that all ranks run it. Return false, without waiting, if a rank still uses the staging
  // memory. Otherwise, the caller stores the data of the first stage and calls publish_early(), which wakes no rank. The next begin() then
  // returns the same memory. If the collective does not run after all, the caller calls withdraw() before any rank can start another
  // collective of the group.
  bool begin_early(Stage* stage);
  void publish_early();
  void withdraw();
  // Publish a finished stage. Ranks that see the counter also see all earlier stores of this rank. Ranks that sleep until the stage are
  // woken.
  void publish();
  // Wait until `member`, or each rank of the group, has published `stage` stages of this collective.
  Status await(int member, uint64_t stage);
  Status await_all(uint64_t stage);
  // True if the rank has published `stage` stages of this collective. Does not wait.
  bool reached(int member, uint64_t stage) const { return (*lines_)[member]->progress.load(std::memory_order_seq_cst) >= base_ + stage; }
  // End the collective, which counts as one more stage.
  void finish();
  // End the collective as if this rank had published `stages` stages, at least as many as it has. Used when ranks abandon a collective
  // after different numbers of stages.
  void finish_at(uint64_t stages);

  // Return a rank's arena (see Segment::arena), or null if there is none.
  std::byte* arena(int member) const { return segment_->arena(locals_[member]); }
  size_t arena_bytes() const { return segment_->spec().arena_bytes; }
  void count_unstaged(size_t bytes) { ledger_->unstaged.fetch_add(bytes, std::memory_order_relaxed); }

  Waiter& waiter() const { return *waiter_; }
  StoreChoice& stores() { return stores_; }

 private:
  void wake_members() const;
  void set_up(Stage* stage);

  std::shared_ptr<Segment> segment_;
  std::vector<int> locals_;
  std::shared_ptr<const SetLines> lines_;
  int me_;
  std::vector<WakeupEvent> wakeups_;
  StagingLedger* ledger_;
  Waiter* waiter_;
  double timeout_;
  // Value of this rank's counter at the start of the current collective.
  uint64_t base_ = 0;
  // Number of stages that this rank has finished in all collectives, each of which ends with an additional one.
  uint64_t own_ = 0;
  uint64_t operations_ = 0;
  int half_ = 0;
  // True from begin_early() until begin() or withdraw().
  bool early_ = false;
  StoreChoice stores_;
  std::vector<std::byte*> staging_;
};

}  // namespace hvd
