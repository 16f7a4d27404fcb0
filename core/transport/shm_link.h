// Link to a rank of the same host through two rings of the Segment, one per direction. A ring has one writer and one reader with separate
// counters, so it needs no locks. The reader can sleep until data arrive, and the writer until there is space, so each side wakes a
// sleeping peer after it has moved bytes.
//
// Shared memory does not show that a peer has died. The engine detects this by the closed control connection or the abort flag, and ends
// the wait through the Waiter's hook. After abort(), the link rejects further use.
#pragma once
#include <memory>

#include "transport/link.h"
#include "transport/segment.h"

namespace hvd {

class ShmLink final : public Link {
 public:
  // `me` and `peer` are local ranks, and `peer_wakeup` is the wakeup event of the peer's engine. The control channel
  // wakes the peer from any sleep. The data channel wakes the peer only if it waits for progress.
  ShmLink(std::shared_ptr<Segment> segment, int me, int peer, WakeupEvent peer_wakeup, RingChannel channel = RingChannel::data);

  int64_t try_send(ConstBytes data) override;
  int64_t try_recv(Bytes data) override;
  const Status& error() const override { return error_; }
  bool writable() const override { return written_ - out_.tail.load(std::memory_order_seq_cst) < capacity_; }
  bool readable() const override { return in_.head.load(std::memory_order_seq_cst) != read_; }
  // Make all later calls fail with `why`. Must be called on the thread that uses the link.
  void abort(Status why) { error_ = std::move(why); }

 private:
  std::shared_ptr<Segment> segment_;
  WakeupEvent peer_wakeup_;
  SleepState wakes_;
  size_t capacity_;
  RingHeader& out_;
  RingHeader& in_;
  std::byte* out_data_;
  std::byte* in_data_;
  // This side's counters, and the peer's counters as last seen. The peer's cache line is read again only if these are not enough to
  // proceed.
  uint64_t written_, read_, peer_read_, peer_written_;
  Status error_;
};

}  // namespace hvd
