// Offset between rank 0's clock and this rank's clock, measured by asking rank 0 for the time (Topic::clock_ask and Topic::clock_told).
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/ticks.h"

namespace hvd {

// Repeated measurement of the offset, because the clocks of two hosts drift apart by up to 50 us per second. Each measurement asks rank 0
// several times in a row and uses the reply with the shortest round trip, which is the most accurate.
class ClockOffset {
 public:
  struct Known {
    // Offset and its maximum error in nanoseconds. Adding `offset` to this rank's clock gives rank 0's clock.
    int64_t offset, error;
  };
  static constexpr int kInARow = 8;
  // Nanoseconds between two requests of one measurement (kBetween), and between two measurements (kRest).
  static constexpr int64_t kBetween = 10'000'000, kRest = 10'000'000'000;

  // Return a request for rank 0's time if a measurement is due, or nothing. `now` is the time of this rank's clock in nanoseconds.
  std::optional<std::string> question(int64_t now) {
    if (now < next_) return {};
    next_ = now + kBetween;
    return pack(now);
  }
  // Return rank 0's reply to another rank's clock request, or nothing if the request is malformed. `now` is the time of
  // rank 0's clock in nanoseconds.
  static std::optional<std::string> answer(std::string_view question, int64_t now) {
    if (question.size() != sizeof(int64_t)) return {};
    std::string both(question);
    both.append(reinterpret_cast<const char*>(&now), sizeof now);
    return both;
  }
  // Process a reply of rank 0. Return the offset after the first reply of all, and the most accurate offset after each series of kInARow
  // replies. Otherwise, return nothing.
  std::optional<Known> hear(std::string_view answer, int64_t now) {
    uint64_t times[2];
    if (answer.size() != sizeof times) return {};
    std::memcpy(times, answer.data(), sizeof times);
    const uint64_t asked = times[0], answered = times[1], took = static_cast<uint64_t>(now) - asked;
    // Maximum round trip in nanoseconds. This also excludes replies to a request of another rank, whose clock makes the round trip look
    // longer.
    constexpr uint64_t kMax = 60'000'000'000;
    if (took > kMax) return {};
    const Known known{static_cast<int64_t>(answered - asked - took / 2), static_cast<int64_t>(took / 2 + 1)};
    if (!best_ || known.error < best_->error) best_ = known;
    const bool first = !any_;
    any_ = true;
    if (++samples_ < kInARow) return first ? best_ : std::nullopt;
    next_ = now + kRest;
    samples_ = 0;
    return std::exchange(best_, std::nullopt);
  }

 private:
  static std::string pack(int64_t time) { return {reinterpret_cast<const char*>(&time), sizeof time}; }

  int64_t next_ = 0;
  int samples_ = 0;
  bool any_ = false;
  std::optional<Known> best_;
};

}  // namespace hvd
