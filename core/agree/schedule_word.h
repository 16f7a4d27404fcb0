// Shared-memory word with which a rank publishes its position in a running schedule to the other ranks of its node
// (engine/schedule_sync.h). This file also evaluates the words of all ranks. tests/core/agree/schedule_word_test.cc
// explores every interleaving of their loads and stores.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace hvd {

// Number of bits in a position. The highest position is reserved for ranks that take no part in any bucket, so that
// other ranks do not wait for them.
inline constexpr int kPositionBits = 38;
inline constexpr uint64_t kNoPart = (uint64_t{1} << kPositionBits) - 1;

// Position of a rank in a schedule. Layout from the highest bit: 25 bits of schedule id, the frozen bit, then the
// position. The rank is ready for all buckets below its position. Once the frozen bit is set, the position does not
// change until the next schedule.
struct ScheduleWord {
  uint64_t bits = 0;

  static ScheduleWord of(uint64_t id, uint64_t position, bool frozen) {
    return {id << (kPositionBits + 1) | static_cast<uint64_t>(frozen) << kPositionBits | (position & kNoPart)};
  }
  uint64_t position() const { return bits & kNoPart; }
  bool of_schedule(uint64_t id) const { return bits >> (kPositionBits + 1) == id; }
  bool frozen(uint64_t id) const { return of_schedule(id) && (bits >> kPositionBits & 1); }
  bool ready(uint64_t id, uint64_t position) const { return of_schedule(id) && this->position() > position; }
};

// Return the position at which the schedule ends: the first one for which some rank is not ready. `words` holds the words of all ranks of
// the node, with the frozen bit set. `members` lists the ranks that take part in each bucket.
inline uint64_t last_position(std::span<const ScheduleWord> words, const std::vector<std::vector<int>>& members) {
  uint64_t at = kNoPart;
  for (const ScheduleWord& w : words) at = w.position() < at ? w.position() : at;
  // The loop ends within one pass over the buckets, because the rank with the lowest position takes part in one of them.
  for (;; ++at) {
    for (int rank : members[at % members.size()]) {
      if (words[static_cast<size_t>(rank)].position() <= at) return at;
    }
  }
}

}  // namespace hvd
