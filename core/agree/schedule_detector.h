// The coordinator's search for what repeats: it is fed with operations in the order in which they become ready, and says when the last
// of them are the same list twice. Pure.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "agree/fuse.h"

namespace hvd {

class ScheduleDetector {
 public:
  // `capacity`: most operations of a schedule; 0: never propose one.
  explicit ScheduleDetector(size_t capacity) : capacity_(capacity) {}

  // An operation has become ready. `identity`: hash of what must repeat: set, face, name unless unnamed, signature of all ranks; operations
  // that cannot be scheduled (errors, join, process sets) call reset() instead.
  void feed(const Ready& ready, uint64_t identity);
  void reset();

  // When the last operations are two equal periods that begin at a fence: the last period, in order. Else empty.
  std::vector<Ready> period() const;
  // A schedule of `operations` ended after `rounds` rounds. After one that did not last, or several that lasted only briefly, only longer
  // ones are proposed (its period was part of a longer one); after several that did not last the next proposal waits, twice as long each
  // time, so that a program which never settles pays next to nothing for the attempts.
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
  size_t hold_ = 0;   // operations still to be seen before the next proposal
  size_t least_ = 1;    // length of a period to propose
  size_t recover_ = 0;  // operations until that is 1 again
  int failures_ = 0;  // schedules in a row that did not last
  static constexpr int kBriefPatience = 2;
  int brief_ = 0;                   // schedules in a row that lasted only briefly
  int patience_ = kBriefPatience;   // so many of them until a longer period is looked for
  std::deque<Token> log_;
};

}  // namespace hvd
