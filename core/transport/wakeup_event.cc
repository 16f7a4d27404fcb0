#include "transport/wakeup_event.h"

#include <unistd.h>

namespace hvd {

void WakeupEvent::notify() const {
  if (fd_ < 0) return;
  const uint64_t one = 1;
  // Ignore EAGAIN: it means that the counter is full, so the owner wakes up anyway.
  [[maybe_unused]] ssize_t n = ::write(fd_, &one, sizeof one);
}

}  // namespace hvd
