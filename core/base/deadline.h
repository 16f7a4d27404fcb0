// Point in time at which a wait gives up. Every blocking call of the core takes a deadline.
#pragma once
#include <algorithm>
#include <chrono>

namespace hvd {

using Clock = std::chrono::steady_clock;

// Maximum length of a sleep in seconds if there is no deadline.
inline constexpr double kForever = 3600;

class Deadline {
 public:
  static Deadline after(double seconds) {
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  }
  static Deadline at(Clock::time_point t) { return Deadline(t); }

  bool passed() const { return Clock::now() >= when_; }
  Clock::time_point when() const { return when_; }
  // Return the milliseconds left, at least 0. The value is rounded up, because rounding down would cause busy-waiting
  // in the last millisecond.
  int remaining_ms() const {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(when_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
  }

 private:
  explicit Deadline(Clock::time_point t) : when_(t) {}
  Clock::time_point when_;
};

}  // namespace hvd
