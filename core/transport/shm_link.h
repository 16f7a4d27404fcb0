// A Link to a rank of the same host through two rings of the host's Segment, one per direction. A ring has one writer and one
// reader, each with a counter of its own, so there are no locks. Whoever moves bytes wakes the other side if that sleeps: the
// reader waits for data, the writer for space.
//
// Memory does not notice that a peer has died. The engine does (closed control connection, abort flag), and ends the wait through
// the Waiter's hook; abort() then makes the link refuse further use.
#pragma once
#include <memory>

#include "transport/link.h"
#include "transport/segment.h"

namespace hvd {

class ShmLink final : public Link {
 public:
  // `me`, `peer`: local ranks; `peer_bell`: what the peer's engine sleeps on.
  // On the control channel the peer is woken from any sleep, on the data channel only if it waits for somebody's progress.
  ShmLink(std::shared_ptr<Segment> segment, int me, int peer, BellRef peer_bell, RingChannel channel = RingChannel::data);

  int64_t try_send(ConstBytes data) override;
  int64_t try_recv(Bytes data) override;
  const Status& error() const override { return error_; }
  bool writable() const override { return written_ - out_.tail.load(std::memory_order_seq_cst) < capacity_; }
  bool readable() const override { return in_.head.load(std::memory_order_seq_cst) != read_; }
  // Every later call fails with `why`. By the thread that uses the link.
  void abort(Status why) { error_ = std::move(why); }

 private:
  std::shared_ptr<Segment> segment_;
  BellRef peer_bell_;
  Mood wakes_;
  size_t capacity_;
  RingHeader& out_;
  RingHeader& in_;
  std::byte* out_data_;
  std::byte* in_data_;
  // My own counters, and what I last saw of the peer's: its cache line is touched only when that does not suffice.
  uint64_t written_, read_, peer_read_, peer_written_;
  Status error_;
};

}  // namespace hvd
