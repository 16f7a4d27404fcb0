// Histories for the schedule detector, written as strings.
#pragma once
#include <string>
#include <vector>

#include "agree/coordinator.h"
#include "agree/schedule_detector.h"

namespace hvd::testing {

inline Ready ready_of(const std::string& name, uint64_t fence, bool unnamed = false, int64_t elements = 4) {
  Ready r;
  r.response.names = {name};
  r.response.shapes = {{elements}};
  r.bytes = static_cast<size_t>(elements) * 4;
  r.fence = fence << kWeakFenceBits;
  r.unnamed = unnamed;
  return r;
}

// Feeds steps (strings of one-letter names; upper case: unnamed with that many elements); returns the period
// found after the last one.
inline std::string period_after(ScheduleDetector& d, const std::vector<std::string>& steps) {
  static uint64_t fence = 0;
  int number = 0;
  for (const std::string& step : steps) {
    ++fence;
    for (char c : step) {
      const bool unnamed = c < 'a';
      const Ready r =
          unnamed ? ready_of("allreduce.noname." + std::to_string(number++), fence, true, c) : ready_of(std::string(1, c), fence);
      d.feed(r, identity_of(r));
    }
  }
  std::string found;
  for (const Ready& r : d.period()) found += r.unnamed ? static_cast<char>(r.response.shapes[0][0]) : r.response.names[0][0];
  return found;
}

}  // namespace hvd::testing
