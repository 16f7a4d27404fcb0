#include "transport/shm_link.h"

#include <algorithm>
#include <cstring>

namespace hvd {
namespace {

// Return the maximum number of bytes that one call moves, so that the peer can start on the first part while this side copies the next.
size_t step(size_t capacity) { return std::max<size_t>(capacity / 4, 1); }

}  // namespace

ShmLink::ShmLink(std::shared_ptr<Segment> segment, int me, int peer, WakeupEvent peer_wakeup, RingChannel channel)
    : segment_(std::move(segment)), peer_wakeup_(peer_wakeup),
      wakes_(channel == RingChannel::control ? SleepState::idle : SleepState::waiting), capacity_(segment_->spec().ring_bytes),
      out_(segment_->ring(me, peer, channel)), in_(segment_->ring(peer, me, channel)), out_data_(segment_->ring_data(me, peer, channel)),
      in_data_(segment_->ring_data(peer, me, channel)), written_(out_.head.load(std::memory_order_seq_cst)),
      read_(in_.tail.load(std::memory_order_seq_cst)), peer_read_(out_.tail.load(std::memory_order_seq_cst)),
      peer_written_(in_.head.load(std::memory_order_seq_cst)) {}

int64_t ShmLink::try_send(ConstBytes data) {
  if (!error_.ok()) return -1;
  if (data.empty()) return 0;
  const size_t want = std::min(data.size(), step(capacity_));
  size_t space = capacity_ - (written_ - peer_read_);
  if (space < want) {
    peer_read_ = out_.tail.load(std::memory_order_seq_cst);
    space = capacity_ - (written_ - peer_read_);
    if (space == 0) return 0;
  }
  const size_t n = std::min(want, space);
  const size_t at = written_ & (capacity_ - 1);
  const size_t first = std::min(n, capacity_ - at);
  std::memcpy(out_data_ + at, data.data(), first);
  std::memcpy(out_data_, data.data() + first, n - first);
  written_ += n;
  out_.head.store(written_, std::memory_order_seq_cst);
  peer_wakeup_.wake(wakes_);
  return static_cast<int64_t>(n);
}

int64_t ShmLink::try_recv(Bytes data) {
  if (!error_.ok()) return -1;
  if (data.empty()) return 0;
  const size_t want = std::min(data.size(), step(capacity_));
  size_t there = peer_written_ - read_;
  if (there < want) {
    peer_written_ = in_.head.load(std::memory_order_seq_cst);
    there = peer_written_ - read_;
    if (there == 0) return 0;
  }
  const size_t n = std::min(want, there);
  const size_t at = read_ & (capacity_ - 1);
  const size_t first = std::min(n, capacity_ - at);
  std::memcpy(data.data(), in_data_ + at, first);
  std::memcpy(data.data() + first, in_data_, n - first);
  read_ += n;
  in_.tail.store(read_, std::memory_order_seq_cst);
  peer_wakeup_.wake(wakes_);
  return static_cast<int64_t>(n);
}

}  // namespace hvd
