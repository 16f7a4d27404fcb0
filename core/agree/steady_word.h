// The word by which a rank tells the others of its node how far it is in a running schedule (engine/steady.h), and what follows from all
// words. Pure; tests/core/agree/steady_model_test.cc looks at every interleaving of the loads and stores of these words.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace hvd {

// The position of a rank that takes no part in any bucket: nobody waits for it.
inline constexpr int kPositionBits = 38;
inline constexpr uint64_t kNoPart = (uint64_t{1} << kPositionBits) - 1;

// 25 bits of schedule id, the frozen bit, the position: the rank is ready for all below. A frozen word does not change any more until it
// has another id.
struct SteadyWord {
  uint64_t bits = 0;

  static SteadyWord of(uint64_t id, uint64_t position, bool frozen) {
    return {id << (kPositionBits + 1) | static_cast<uint64_t>(frozen) << kPositionBits | (position & kNoPart)};
  }
  uint64_t position() const { return bits & kNoPart; }
  bool of_schedule(uint64_t id) const { return bits >> (kPositionBits + 1) == id; }
  bool frozen(uint64_t id) const { return of_schedule(id) && (bits >> kPositionBits & 1); }
  bool ready(uint64_t id, uint64_t position) const { return of_schedule(id) && this->position() > position; }
};

// `words`, all of them frozen, by local rank; `members`: of bucket b. The schedule ends at the first position for which some member was not
// ready. A schedule in which nobody takes part cannot exist.
inline uint64_t last_position(std::span<const SteadyWord> words, const std::vector<std::vector<int>>& members) {
  uint64_t at = kNoPart;
  for (const SteadyWord& w : words) at = w.position() < at ? w.position() : at;
  // At most one round past the slowest, so the search is short.
  for (;; ++at) {
    for (int rank : members[at % members.size()]) {
      if (words[static_cast<size_t>(rank)].position() <= at) return at;
    }
  }
}

}  // namespace hvd
