// Link: ordered byte channel to one peer. Implementations: tcp (a socket), shm (two rings in mapped memory), inproc
// (threads of one process, for tests), faulty (decorator for tests). No call blocks; the Waiter does the waiting. Not
// thread-safe. Never throws.
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

  // Return the bytes moved (0: would block), or -1 if the link is permanently broken; error() then says why. A peer's
  // orderly close counts as broken once everything it sent has been received.
  virtual int64_t try_send(ConstBytes data) = 0;
  virtual int64_t try_recv(Bytes data) = 0;
  // Why the link is broken; ok while it works.
  virtual const Status& error() const = 0;

  // Events that a sleeper must watch: a descriptor, and the poll(2) events that the last calls were blocked on (POLLIN
  // after a try_recv that returned 0, POLLOUT after such a try_send; cleared by a call that moves bytes). Links that
  // trigger the owner's wakeup event instead have fd -1.
  virtual int fd() const { return -1; }
  virtual short wanted() const { return 0; }
  // True if bytes arrive in memory, announced by the owner's wakeup event. fd(), if any, then only tells of the peer's
  // death, which probe() checks.
  virtual bool in_memory() const { return false; }
  virtual void probe() {}
  virtual bool readable() const { return false; }  // Bytes are available in memory.
  virtual bool writable() const { return false; }  // Memory has room.
  // Called before the owner sleeps for wanted(). The link may tell the kernel not to wake it for fewer bytes than the
  // last try_recv requested. So a try_recv must not request more than the peer sends without waiting for an answer.
  virtual void before_sleep() {}
  // Return for how many seconds the peer's host has owed an acknowledgement; 0 if it owes none or cannot tell. The
  // kernel of a live peer acknowledges however busy the process is. Must be called at intervals: the time is measured
  // between calls.
  virtual double unanswered() { return 0; }
  // End the connection for both sides: the peer is notified, and a local sleeper on fd() wakes up. The link is unusable
  // afterwards.
  virtual void hang_up() {}
  // Clear wanted(); called by the Waiter when a wait begins.
  virtual void clear_wanted() {}
};

}  // namespace hvd
