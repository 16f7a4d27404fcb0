// Link: an ordered byte channel to one peer. Implementations: tcp (a socket fd), shm (two rings in mapped memory), inproc (threads
// of one process, for tests), faulty (decorator for tests). All calls are non-blocking; waiting is the Waiter's business.
// A link is used by one thread at a time. It never closes a peer's side, calls exit or throws.
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

  // Bytes taken (0: would block), or -1: the link is broken for good and error() says why. A peer's orderly close counts as
  // broken as soon as everything that it sent before has been received.
  virtual int64_t try_send(ConstBytes data) = 0;
  virtual int64_t try_recv(Bytes data) = 0;
  virtual const Status& error() const = 0;

  // What a sleeper has to watch for this link: a descriptor and the poll(2) events that the last calls left wanting (POLLIN after
  // a try_recv that returned 0, POLLOUT likewise; cleared by a call that moves bytes). Links that ring the owner's bell have -1.
  virtual int fd() const { return -1; }
  virtual short wanted() const { return 0; }
  // Do bytes arrive in memory, announced by the owner's bell? Then fd(), if any, only tells of the peer's death, and probe() looks at it.
  virtual bool in_memory() const { return false; }
  virtual void probe() {}
  virtual bool readable() const { return false; }  // bytes lie in memory
  virtual bool writable() const { return false; }  // memory has room
  // The owner is about to sleep until what is wanted comes: the link may ask the kernel to wake it for no less than the last
  // try_recv asked for. So a try_recv must not ask for more than the peer sends without waiting for an answer.
  virtual void before_sleep() {}
  // For how many seconds the peer's host has acknowledged nothing of what it owes an answer to; 0 when it owes none, or cannot. A peer that
  // is alive answers however busy it is, for its kernel does. To be asked every now and then: what was owed for long between two calls
  // counts.
  virtual double unanswered() { return 0; }
  // Ends the connection for both sides: the peer learns of it, and who sleeps on fd() here wakes up. The link is of no use afterwards.
  virtual void hang_up() {}
  // Forgets what was wanted; the Waiter calls it when a wait begins.
  virtual void clear_wanted() {}
};

}  // namespace hvd
