// Repetition detector of the coordinator. It receives operations in the order in which they become ready and reports
// when the latest operations repeat the operations before them. It does no I/O and starts no threads.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "agree/fuse.h"

namespace hvd {

class ScheduleDetector {
 public:
  // `capacity` is the maximum number of operations in a schedule. If it is 0, the detector proposes no schedules.
  explicit ScheduleDetector(size_t capacity) : capacity_(capacity) {}

  // Add a ready operation. `identity` is a hash of everything that must repeat: the set, the frontend, the name (if
  // any) and the signature on all ranks. For operations that cannot be scheduled (errors, joins, process sets), call
  // reset() instead.
  void feed(const Ready& ready, uint64_t identity);
  // Discard all operations seen so far.
  void reset();

  // Return the operations of the last period, in order. A period is a sequence of operations that occurred twice in a
  // row. Both times, it must begin after the program has waited for all earlier operations (Ready::fence). Return an
  // empty list if there is no period.
  std::vector<Ready> period() const;
  // Record that a schedule with `operations` operations ended after `rounds` rounds. A schedule that ended early was probably part of a
  // longer period, so the detector then proposes only longer ones. If schedules keep ending early, it waits before the next proposal, each
  // time for twice as many operations, so that a program without repetition pays almost nothing.
  void note_revoked(uint64_t rounds, size_t operations);

 private:
  struct Token {
    uint64_t identity;
    // Sum of the hashes (`identity`) of all operations since reset(), up to and including this one.
    uint64_t prefix;
    Ready ready;
  };
  struct Shape {
    std::map<uint32_t, std::vector<std::vector<uint64_t>>> sections;
    std::vector<uint64_t> unnamed;
    bool operator==(const Shape&) const = default;
  };
  bool repeats_within(size_t p) const;
  bool ambiguous(size_t p) const;
  size_t period_length() const;
  Shape shape_of(size_t from, size_t count) const;
  bool may_begin(size_t at) const;
  size_t capacity_;
  // Number of operations to observe before the next proposal.
  size_t hold_ = 0;
  // Minimum number of operations in a proposed period. Greater than 1 while shorter periods are ruled out.
  size_t least_ = 1;
  // Number of operations until short periods are accepted again (least_).
  size_t recover_ = 0;
  // Number of consecutive schedules that ended early.
  int failures_ = 0;
  static constexpr int kBriefPatience = 2;
  // Number of consecutive schedules that ended after few operations.
  int brief_ = 0;
  // Number of consecutive short schedules (brief_) after which the detector proposes only longer periods.
  int patience_ = kBriefPatience;
  std::deque<Token> log_;
};

}  // namespace hvd
