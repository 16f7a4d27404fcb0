// A control link between two ranks of one host. Messages go through rings in shared memory: no system call as long as both sides are
// awake, which makes an agreement a matter of a few microseconds. The socket over which the ranks met stays open beside them, because
// memory does not notice when a peer dies.
#pragma once
#include <memory>

#include "transport/link.h"
#include "transport/shm_link.h"

namespace hvd {

class NodeControlLink final : public Link {
 public:
  // `me`, `peer`: local ranks; `peer_bell`: what the peer's engine sleeps on.
  NodeControlLink(std::unique_ptr<Link> socket, std::shared_ptr<Segment> segment, int me, int peer, BellRef peer_bell)
      : socket_(std::move(socket)), ring_(std::move(segment), me, peer, peer_bell, RingChannel::control) {}

  int64_t try_send(ConstBytes data) override { return ring_.try_send(data); }
  int64_t try_recv(Bytes data) override {
    const int64_t n = ring_.try_recv(data);
    // What the peer wrote before it closed the socket was in the ring by then, so an empty ring is the end.
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
