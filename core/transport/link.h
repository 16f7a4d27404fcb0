// Link: ordered byte channel to one peer. Implementations are tcp (a socket), shm (two rings in mapped memory), inproc (threads of one
// process, for tests), and faulty (a decorator for tests). No call blocks; the Waiter does the waiting. Not thread-safe. Never throws.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace hvd {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

class Link {
 public:
  virtual ~Link() = default;

  // Return the number of bytes moved, 0 if the call would block, or -1 if the link is permanently broken (error() has the reason). If the
  // peer has closed the link, it breaks only once all data from the peer have been received.
  virtual int64_t try_send(ConstBytes data) = 0;
  virtual int64_t try_recv(Bytes data) = 0;
  // Return ok while the link works, or the reason why it is broken.
  virtual const Status& error() const = 0;

  // Return what to poll before a sleep: fd(), or -1 if the link triggers the owner's wakeup event instead, for the poll(2) events wanted().
  // A try_recv that returns 0 adds POLLIN, and a try_send that returns 0 adds POLLOUT. A call that moves bytes clears its event.
  virtual int fd() const { return -1; }
  virtual short wanted() const { return 0; }
  // True if bytes arrive through shared memory and trigger the owner's wakeup event. The fd() of such a link only reveals that the peer has
  // died, which probe() checks.
  virtual bool in_memory() const { return false; }
  virtual void probe() {}
  // True if received bytes can be read without waiting.
  virtual bool readable() const { return false; }
  // True if the link has space for more bytes to send. Used only for links in shared memory.
  virtual bool writable() const { return false; }
  // Called before the owner sleeps until one of the events wanted() occurs. The link can then delay the wakeup until as many bytes have
  // arrived as the last try_recv requested. A try_recv must therefore not request bytes that the peer sends only after an answer.
  virtual void before_sleep() {}
  // Return the number of seconds for which the peer's host has not acknowledged data, or 0 if nothing is unacknowledged or the time is
  // unknown. The kernel of a live peer acknowledges data even if the process is busy. Call this at intervals; the time is measured between
  // calls.
  virtual double unanswered() { return 0; }
  // End the connection for both sides. The peer detects this, and a local thread that sleeps on fd() wakes up. The link is unusable
  // afterwards.
  virtual void hang_up() {}
  // Clear wanted(). The Waiter calls this when a wait begins.
  virtual void clear_wanted() {}
};

}  // namespace hvd
