// A Link is an ordered byte channel to one peer. Implementations are tcp (a socket), shm (two rings in mapped memory),
// inproc (threads of one process, for tests), and faulty (a decorator for tests). No call blocks; the Waiter does the
// waiting. Not thread-safe. Never throws.
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

  // Return the number of bytes moved, or 0 if the call would block. Return -1 if the link is permanently broken;
  // error() then gives the reason. If the peer has closed the link in an orderly way, the link breaks only once
  // everything that the peer sent has been received.
  virtual int64_t try_send(ConstBytes data) = 0;
  virtual int64_t try_recv(Bytes data) = 0;
  // Return ok while the link works, or the reason why it is broken.
  virtual const Status& error() const = 0;

  // Return what to poll before a sleep: a file descriptor (fd), and the poll(2) events that the last calls were blocked
  // on (wanted). A try_recv that returns 0 adds POLLIN, and a try_send that returns 0 adds POLLOUT. A call that moves
  // bytes clears its event. Links that trigger the owner's wakeup event instead have fd -1.
  virtual int fd() const { return -1; }
  virtual short wanted() const { return 0; }
  // True if bytes arrive through shared memory and trigger the owner's wakeup event. If such a link also has an fd(),
  // the descriptor only reveals that the peer has died; probe() checks for this.
  virtual bool in_memory() const { return false; }
  virtual void probe() {}
  // True if received bytes can be read without waiting.
  virtual bool readable() const { return false; }
  // True if the link's memory has space for more bytes to send.
  virtual bool writable() const { return false; }
  // Called before the owner sleeps until one of the events wanted() occurs. The link can tell the kernel to wake the
  // owner only once as many bytes have arrived as the last try_recv requested. A try_recv must therefore not request
  // more bytes than the peer sends without waiting for an answer.
  virtual void before_sleep() {}
  // Return the number of seconds for which the peer's host has not acknowledged data, or 0 if nothing is unacknowledged
  // or the time is unknown. The kernel of a live peer acknowledges data even if the process is busy. Call this at
  // intervals, because the time is measured between calls.
  virtual double unanswered() { return 0; }
  // End the connection for both sides. The peer detects this, and a local thread that sleeps on fd() wakes up. The link
  // cannot be used afterwards.
  virtual void hang_up() {}
  // Clear wanted(). The Waiter calls this when a wait begins.
  virtual void clear_wanted() {}
};

}  // namespace hvd
