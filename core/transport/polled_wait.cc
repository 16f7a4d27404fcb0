#include "transport/polled_wait.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>

namespace hvd {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Number of polls between two clock readings.
constexpr int kClockEvery = 64;
// Time to poll without a pause if every rank has its own core. Yielding would be worse: if other threads do need the core, it can cost a
// whole time slice, while a sleeping thread gets the core back sooner.
constexpr auto kNoRest = milliseconds(1);
// Time to poll without a pause with more ranks than cores: short, because the awaited rank might need this core.
constexpr auto kNoRestShared = microseconds(200);
// Each sleep lasts 1/kPart of the time waited so far, at least kLeastRest and at most kMaxRest.
constexpr int kPart = 20;
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
