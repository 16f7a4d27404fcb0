#include "driver.h"

#include <chrono>
#include <cstdlib>

#include "events.h"
#include "streams.h"

namespace simcuda {

Driver& driver() {
  static Driver* const the = new Driver;  // never destroyed: threads may outlive static destructors
  return *the;
}

uint64_t seed_of_process() {
  const char* rank = std::getenv("HOROVOD_RANK");
  return mix(static_cast<uint64_t>(knobs().seed) << 16 ^ (rank ? static_cast<uint64_t>(std::atoi(rank)) : 0));
}

Call::Call(const char* name, unsigned needs) : name(name) {
  Driver& d = driver();
  if (d.forked) {  // the thread that held the lock does not exist in this process
    error = kNotInitialized;
    return;
  }
  if (d.exited) {
    error = kDeinitialized;
    return;
  }
  lock = std::unique_lock(d.mutex);
  ++d.calls[name];
  check(needs);
}

void Call::check(unsigned needs) {
  Driver& d = driver();
  if (!d.initialised && !(needs & kEvenIfNotInit)) error = kNotInitialized;
  if (error) return;
  injected_fault();
  if (d.sticky && !(needs & kEvenIfFaulty)) error = d.sticky;
  if (error) return;
  context = current_context();
  if ((needs & kNeedsContext) && !(context && context->alive)) error = kInvalidContext;
  if (error) return;
  if (needs & kUnsafe) error = unsafe_call(name);
  if (error) return;
  if (needs & kMayWait) error = may_wait(*this);
}

int Call::wait(const std::function<bool()>& done) {
  Driver& d = driver();
  const auto start = std::chrono::steady_clock::now();
  bool reported = false;
  while (!done()) {
    if (d.sticky) return d.sticky;
    if (d.exited) return kDeinitialized;
    d.changed.wait_for(lock, std::chrono::microseconds(500));  // events of other processes do not notify this one
    injected_fault();
    if (!reported && std::chrono::steady_clock::now() - start > std::chrono::minutes(2)) {
      violation(std::string(name) + " waits for too long; " + what_streams_do());
      reported = true;
    }
  }
  return d.sticky;
}

}  // namespace simcuda
