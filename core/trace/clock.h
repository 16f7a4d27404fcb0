// How far rank 0's clock is ahead of this rank's: found by asking rank 0 for the time, in notes (Topic::clock_ask, clock_told).
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/ticks.h"

namespace hvd {

// Clocks of two hosts run apart by some 50 us in a second at worst, so it is asked again now and then, several times in a row: the
// answer that took least is the best one.
class ClockOffset {
 public:
  struct Known {
    int64_t offset, error;  // ns; rank 0's clock is this one's plus `offset`, at most `error` off
  };
  static constexpr int kInARow = 8;
  static constexpr int64_t kBetween = 10'000'000, kRest = 10'000'000'000;  // ns

  // Is it time to ask? Then the question.
  std::optional<std::string> question(int64_t now) {
    if (now < next_) return {};
    next_ = now + kBetween;
    return pack(now);
  }
  // Rank 0's answer.
  static std::optional<std::string> answer(std::string_view question, int64_t now) {
    if (question.size() != sizeof(int64_t)) return {};
    std::string both(question);
    both.append(reinterpret_cast<const char*>(&now), sizeof now);
    return both;
  }
  // What is known now, if this answer is the first one or the best of a row that is over.
  std::optional<Known> hear(std::string_view answer, int64_t now) {
    uint64_t times[2];
    if (answer.size() != sizeof times) return {};
    std::memcpy(times, answer.data(), sizeof times);
    const uint64_t asked = times[0], told = times[1], took = static_cast<uint64_t>(now) - asked;
    constexpr uint64_t kMost = 60'000'000'000;  // ns; what took longer, or is no answer to a question of ours, says nothing
    if (took > kMost) return {};
    const Known known{static_cast<int64_t>(told - asked - took / 2), static_cast<int64_t>(took / 2 + 1)};
    if (!best_ || known.error < best_->error) best_ = known;
    const bool first = !any_;
    any_ = true;
    if (++heard_ < kInARow) return first ? best_ : std::nullopt;
    next_ = now + kRest;
    heard_ = 0;
    return std::exchange(best_, std::nullopt);
  }

 private:
  static std::string pack(int64_t time) { return {reinterpret_cast<const char*>(&time), sizeof time}; }

  int64_t next_ = 0;
  int heard_ = 0;
  bool any_ = false;
  std::optional<Known> best_;
};

}  // namespace hvd
