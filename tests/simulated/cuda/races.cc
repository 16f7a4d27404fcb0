#include "races.h"

#include <algorithm>

#include "memory.h"
#include "streams.h"

namespace simcuda {
namespace {

struct Past {
  size_t stream;
  uint64_t item;
  size_t begin, end;
  Access access;
  const char* name;
};

constexpr size_t kRemembered = 256;  // of each allocation

std::unordered_map<uint64_t, std::vector<Past>>& history() {
  static auto* const all = new std::unordered_map<uint64_t, std::vector<Past>>;
  return *all;
}

bool conflict(Access a, Access b) { return (a == Access::kWrite || b == Access::kWrite); }

}  // namespace

void Clock::reach(size_t stream, uint64_t item) {
  if (items.size() <= stream) items.resize(stream + 1);
  items[stream] = std::max(items[stream], item);
}

void Clock::join(const Clock& other) {
  for (size_t i = 0; i < other.items.size(); ++i) reach(i, other.items[i]);
}

Clock& host_clock() {
  static auto* const clock = new Clock;
  return *clock;
}

Clock complete_clock() {
  Clock all;
  for (auto& [handle, stream] : driver().streams) all.reach(stream->number, stream->completed);
  return all;
}

void note_access(Stream& stream, const char* name, const Allocation& allocation, size_t offset, size_t bytes, Access access) {
  auto& all = history()[allocation.id];
  const Past now{stream.number, stream.completed + 1, offset, offset + bytes, access, name};
  for (const Past& past : all) {
    const bool overlap = past.begin < now.end && now.begin < past.end;
    if (overlap && past.stream != now.stream && conflict(past.access, now.access) && past.item > stream.clock.of(past.stream))
      violation(std::string(name) + " on stream " + std::to_string(now.stream) + " is not ordered after " + past.name + " on stream " +
                std::to_string(past.stream) + ": both use bytes " + std::to_string(std::max(past.begin, now.begin)) + " to " +
                std::to_string(std::min(past.end, now.end)) + " of " + describe(allocation));
  }
  auto same = std::find_if(all.begin(), all.end(), [&](const Past& past) {
    return past.stream == now.stream && past.begin == now.begin && past.end == now.end && past.access == now.access;
  });
  if (same != all.end()) {
    *same = now;
  } else {
    if (all.size() == kRemembered) all.erase(all.begin());
    all.push_back(now);
  }
}

void forget_accesses(const Allocation& allocation) { history().erase(allocation.id); }

}  // namespace simcuda
