// Clock for events that are too frequent for system calls. It reads the processor's time stamp counter, which all cores
// share. TickScale converts the readings to nanoseconds of the system's monotonic clock (Clock), which all processes of
// a host share.
#pragma once
#include <cstdint>

#include "base/deadline.h"

namespace hvd {

inline int64_t monotonic_ns() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return static_cast<uint64_t>(monotonic_ns());
#endif
}

// Conversion of time stamps to the system's monotonic clock (Clock), by a straight line through two readings of both. The constructor takes
// the first reading, line() the second. One second after the first reading, the error is below 1 us.
class TickScale {
 public:
  TickScale() : ticks_(ticks()), ns_(monotonic_ns()) {}

  // Line through the first and the latest reading of both clocks. Its error grows with its age.
  class Line {
   public:
    int64_t ns(uint64_t at) const {
      return ns_ + static_cast<int64_t>(static_cast<double>(static_cast<int64_t>(at - ticks_)) * ns_per_tick_);
    }
    double seconds(uint64_t span) const { return static_cast<double>(span) * ns_per_tick_ * 1e-9; }

   private:
    friend class TickScale;
    uint64_t ticks_ = 0;
    int64_t ns_ = 0;
    double ns_per_tick_ = 1;
  };
  Line line() const {
    // Minimum nanoseconds between the two readings of the clocks.
    constexpr int64_t kLeast = 2'000'000;
    Line line;
    do {
      line.ticks_ = ticks();
      line.ns_ = monotonic_ns();
    } while (line.ns_ - ns_ < kLeast);
    line.ns_per_tick_ = static_cast<double>(line.ns_ - ns_) / static_cast<double>(line.ticks_ - ticks_);
    return line;
  }

 private:
  uint64_t ticks_;
  int64_t ns_;
};

}  // namespace hvd
