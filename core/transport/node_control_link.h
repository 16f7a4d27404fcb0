// Control link between two ranks of one host. Messages go through rings in shared memory, without system calls while both sides are awake,
// so negotiation takes a few microseconds. The bootstrap socket stays open, because only a socket reveals the death of the peer.
#pragma once
#include <memory>

#include "transport/link.h"
#include "transport/shm_link.h"

namespace hvd {

class NodeControlLink final : public Link {
 public:
  // `me` and `peer` are local ranks. `peer_wakeup` is the wakeup event of the peer's engine.
  NodeControlLink(std::unique_ptr<Link> socket, std::shared_ptr<Segment> segment, int me, int peer, WakeupEvent peer_wakeup)
      : socket_(std::move(socket)), ring_(std::move(segment), me, peer, peer_wakeup, RingChannel::control) {}

  int64_t try_send(ConstBytes data) override { return ring_.try_send(data); }
  int64_t try_recv(Bytes data) override {
    const int64_t n = ring_.try_recv(data);
    // The peer writes its last bytes to the ring before it closes the socket. If the socket is closed, an empty ring is thus the end of the
    // stream.
    return n == 0 && closed_ ? -1 : n;
  }
  const Status& error() const override { return socket_->error(); }
  int fd() const override { return socket_->fd(); }
  bool in_memory() const override { return true; }
  bool writable() const override { return ring_.writable(); }
  bool readable() const override { return ring_.readable(); }
  void probe() override {
    std::byte nothing;
    if (!closed_ && socket_->try_recv({&nothing, 1}) < 0) closed_ = true;
  }

 private:
  std::unique_ptr<Link> socket_;
  ShmLink ring_;
  bool closed_ = false;
};

}  // namespace hvd
