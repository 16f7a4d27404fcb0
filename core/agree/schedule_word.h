// Word in shared memory with which a rank publishes its position in a running schedule to the other ranks of its node
// (engine/schedule_sync.h), and the evaluation of all these words. tests/core/agree/schedule_word_test.cc explores
// every interleaving of their loads and stores.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace hvd {

// Position of a rank that takes no part in any bucket. No rank waits for it.
inline constexpr int kPositionBits = 38;
inline constexpr uint64_t kNoPart = (uint64_t{1} << kPositionBits) - 1;

// Layout, from the top: 25 bits of schedule id, the frozen bit, and the position. The rank is ready for all lower
// positions. A frozen word changes only when it gets another id.
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

// Return the first position for which some member was not ready; the schedule ends there. `words` holds the frozen word
// of each local rank, and `members` the members of each bucket. At least one rank must take part in the schedule.
inline uint64_t last_position(std::span<const ScheduleWord> words, const std::vector<std::vector<int>>& members) {
  uint64_t at = kNoPart;
  for (const ScheduleWord& w : words) at = w.position() < at ? w.position() : at;
  // The result is at most one round after the slowest rank's position.
  for (;; ++at) {
    for (int rank : members[at % members.size()]) {
      if (words[static_cast<size_t>(rank)].position() <= at) return at;
    }
  }
}

}  // namespace hvd
