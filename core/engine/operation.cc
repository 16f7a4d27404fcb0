#include "engine/operation.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <new>

namespace hvd {
namespace {

// Use the system call directly, because std::atomic::wait has no timeout.
void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, double seconds) {
  timespec ts{static_cast<time_t>(seconds), static_cast<long>((seconds - static_cast<time_t>(seconds)) * 1e9)};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, &ts, nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>* word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

Output::Output(size_t bytes)
    : owner_(::operator new(bytes ? bytes : 1, std::align_val_t(64)), [](void* p) { ::operator delete(p, std::align_val_t(64)); }),
      data_(static_cast<std::byte*>(owner_.get())), bytes_(bytes) {}

void Operation::make_output(size_t bytes) {
  output = outputs ? outputs(bytes) : std::make_shared<Output>(bytes);
  if (!output) throw std::bad_alloc();
}

void Operation::complete(Status status) {
  status_ = std::move(status);
  if (state_.exchange(kDone, std::memory_order_acq_rel) == kSleepers) futex_wake_all(&state_);
  if (on_done) on_done(*this, context);
}

void Operation::reuse() {
  if (request.unnamed) request.name.clear();
  first_poll.store(0, std::memory_order_relaxed);
  awaited.store(false, std::memory_order_relaxed);
  requested = {};
  sizes.clear();
  output.reset();
  on_device.reset();
  residual = nullptr;
  scheduled = false;
  status_ = {};
  state_.store(kPending, std::memory_order_relaxed);
}

bool Operation::sleep_until(Deadline deadline) {
  while (!done()) {
    const double left = std::chrono::duration<double>(deadline.when() - Clock::now()).count();
    if (left <= 0) return done();
    uint32_t expected = kPending;
    state_.compare_exchange_strong(expected, kSleepers, std::memory_order_acq_rel);
    if (expected == kDone) return true;
    futex_wait(&state_, kSleepers, left);
  }
  return true;
}

}  // namespace hvd
