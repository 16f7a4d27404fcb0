// Detects repetition on the coordinator: receives operations in the order in which they become ready, and reports when
// the latest ones are the same list twice. Pure.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "agree/fuse.h"

namespace hvd {

class ScheduleDetector {
 public:
  // `capacity`: maximum operations of a schedule; 0: never propose one.
  explicit ScheduleDetector(size_t capacity) : capacity_(capacity) {}

  // Add a ready operation. `identity`: hash of what must repeat: set, frontend, name (unless unnamed) and signature on
  // all ranks. For operations that cannot be scheduled (errors, join, process sets) call reset() instead.
  void feed(const Ready& ready, uint64_t identity);
  // Forget all operations seen so far.
  void reset();

  // Return the last period, in order, if the latest operations are two equal periods that begin at a fence; otherwise
  // empty.
  std::vector<Ready> period() const;
  // Record that a schedule of `operations` operations ended after `rounds` rounds. After one that did not last, or
  // several that lasted only briefly, only longer periods are proposed, because this one was part of a longer period.
  // After several that did not last, the next proposal is delayed, twice as long each time, so that a program that
  // never settles pays almost nothing for the attempts.
  void note_revoked(uint64_t rounds, size_t operations);

 private:
  struct Token {
    uint64_t identity;
    uint64_t prefix;  // sum of identities up to and including this one
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
  size_t hold_ = 0;   // operations to observe before the next proposal
  size_t least_ = 1;    // minimum length of a proposed period
  size_t recover_ = 0;  // operations until least_ is reset to 1
  int failures_ = 0;  // consecutive schedules that did not last
  static constexpr int kBriefPatience = 2;
  int brief_ = 0;                   // consecutive schedules that lasted only briefly
  int patience_ = kBriefPatience;   // value of brief_ at which a longer period is required
  std::deque<Token> log_;
};

}  // namespace hvd
