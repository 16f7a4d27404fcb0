// Link between two threads of one process: for tests that run ranks as threads, and for jobs in a single process. Each direction has a
// bounded byte queue. One mutex protects both queues and the sleep state of the wakeup events, so no wakeup is lost.
#pragma once
#include <memory>
#include <utility>

#include "transport/link.h"
#include "transport/wakeup_event.h"

namespace hvd {

class InprocLink final : public Link {
 public:
  using Pair = std::pair<std::unique_ptr<InprocLink>, std::unique_ptr<InprocLink>>;
  // Create both ends of a link. `first` and `second` are the wakeup events of their users. `capacity` is the maximum
  // number of bytes queued per direction, at least 1.
  static Pair make_pair(WakeupEvent first, WakeupEvent second, size_t capacity = 64 << 10);
  ~InprocLink() override { close(); }

  int64_t try_send(ConstBytes data) override;
  int64_t try_recv(Bytes data) override;
  const Status& error() const override { return error_; }
  void hang_up() override { close(); }
  // Close the link, as if the process had exited. The peer still receives everything sent before.
  void close();

 private:
  struct Pipe;
  InprocLink(std::shared_ptr<Pipe> pipe, int side, WakeupEvent peer) : pipe_(std::move(pipe)), side_(side), peer_wakeup_(peer) {}
  int64_t broken();

  std::shared_ptr<Pipe> pipe_;
  int side_;
  WakeupEvent peer_wakeup_;
  Status error_;
};

}  // namespace hvd
