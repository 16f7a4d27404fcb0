// Failures: sticky errors, calls that wait for the whole device, forks and the end of the process.
#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "driver.h"
#include "memory.h"
#include "streams.h"

namespace simcuda {
namespace {

void at_exit() {
  Driver& d = driver();
  if (d.forked) return;
  std::unique_lock lock(d.mutex);
  d.exited = true;
  d.changed.notify_all();
  d.changed.wait_for(lock, std::chrono::seconds(2), [&] { return d.stream_threads == 0; });
}

bool chance(int64_t percent) {
  static std::mt19937_64 random(seed_of_process());
  return percent > 0 && static_cast<int64_t>(random() % 100) < percent;
}

}  // namespace

void fault(int error) {
  Driver& d = driver();
  int none = 0;
  d.sticky.compare_exchange_strong(none, error);
  d.changed.notify_all();
}

void injected_fault() {
  if (knobs().fault && driver().initialised && !driver().sticky) fault(static_cast<int>(knobs().fault));
}

void watch_process() {
  pthread_atfork(nullptr, nullptr, [] { driver().forked = true; });
  std::atexit(at_exit);
}

int wait_for_device(Call& call, int device) {
  std::vector<std::pair<Stream*, uint64_t>> all;
  for (auto& [handle, stream] : driver().streams)
    if (stream->context->device == device && !stream->capture) all.emplace_back(stream.get(), stream->submitted);
  const int error = call.wait([&] {
    for (auto& [stream, count] : all)
      if (stream->completed < count) return false;
    return true;
  });
  if (!error)
    for (auto& [stream, count] : all) host_clock().join(stream->clock);
  return error;
}

int may_wait(Call& call) {
  if (knobs().watch) violation(std::string(call.name) + " may wait for the device, and was called after warm-up");
  if (!call.context || !chance(knobs().sync_chance)) return kSuccess;
  return wait_for_device(call, call.context->device);
}

}  // namespace simcuda
