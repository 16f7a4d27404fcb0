#include "transport/polled_wait.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>

namespace hvd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kClockEvery = 64;  // Number of polls between two clock readings.
// If there is a core for each rank, poll without a pause for this long. Do not yield: if other threads need the core
// after all, yielding gives them whole time slices, while a thread that rests wakes up earlier.
constexpr auto kNoRest = milliseconds(1);
// If there are more ranks than cores, the rank waited for may need this core.
constexpr auto kNoRestShared = microseconds(200);
constexpr int kPart = 20;  // each rest takes 1/kPart of the wait so far, within these bounds
constexpr auto kLeastRest = microseconds(20), kMaxRest = microseconds(500);

}  // namespace

Status PolledWait::pause() {
  const int round = rounds_++;
  const SpinPolicy& policy = waiter_.policy();
  if (round == 0) begin_ = Clock::now();
  if (policy.spins > 0 && round % kClockEvery != kClockEvery - 1) return {};
  HVD_RETURN_IF_ERROR(waiter_.glance());
  const auto present = Clock::now();
  const auto waited = present - begin_;
  if (waited > std::chrono::duration<double>(timeout_)) {
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%g", timeout_);
    return Status(Code::timeout, "no progress for " + std::string(seconds) + " s while waiting for " + what_());
  }
  if (policy.spins > 0 && waited < kNoRest) return {};
  if (policy.spins == 0 && waited < kNoRestShared) {
    ::sched_yield();
    return {};
  }
  return waiter_.rest(std::clamp<Clock::duration>(waited / kPart, kLeastRest, kMaxRest));
}

}  // namespace hvd
