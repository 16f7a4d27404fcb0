// Repetition detector of the coordinator. It receives operations in the order in which they become ready, and reports
// when the latest operations are the same list twice. Does no I/O and starts no threads.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "agree/fuse.h"

namespace hvd {

class ScheduleDetector {
 public:
  // `capacity` is the maximum number of operations in a schedule; with 0 no schedule is proposed.
  explicit ScheduleDetector(size_t capacity) : capacity_(capacity) {}

  // Add a ready operation. `identity` is a hash of everything that must repeat: set, frontend, name (if it has one) and
  // signature on all ranks. For operations that cannot be scheduled (errors, joins, process sets) call reset() instead.
  void feed(const Ready& ready, uint64_t identity);
  // Forget all operations seen so far.
  void reset();

  // Return the last period, in order, if the latest operations are two equal periods that begin at a fence; otherwise
  // return an empty list.
  std::vector<Ready> period() const;
  // Record that a schedule with `operations` operations ended after `rounds` rounds. If it did not last, or several
  // schedules lasted only briefly, it was part of a longer period, so only longer periods are proposed from now on.
  // After several schedules that did not last, the next proposal is delayed, each time by twice as many operations, so
  // that a program that never repeats itself pays almost nothing for the attempts.
  void note_revoked(uint64_t rounds, size_t operations);

 private:
  struct Token {
    uint64_t identity;
    uint64_t prefix;  // sum of the identities up to and including this operation
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
  size_t hold_ = 0;   // Number of operations to observe before the next proposal.
  size_t least_ = 1;    // Minimum length of a proposed period.
  size_t recover_ = 0;  // Number of operations until least_ is reset to 1.
  int failures_ = 0;  // Number of consecutive schedules that did not last.
  static constexpr int kBriefPatience = 2;
  int brief_ = 0;                   // Number of consecutive schedules that lasted only briefly.
  int patience_ = kBriefPatience;   // Value of brief_ at which a longer period is required.
  std::deque<Token> log_;
};

}  // namespace hvd
