// A Link between two threads of one process: ranks as threads, in tests and in a world of one process. A bounded queue of bytes a
// direction behind one mutex; the mutex also orders the queue against the bell's mood, so that no wake-up is lost.
#pragma once
#include <memory>
#include <utility>

#include "transport/bell.h"
#include "transport/link.h"

namespace hvd {

class InprocLink final : public Link {
 public:
  using Pair = std::pair<std::unique_ptr<InprocLink>, std::unique_ptr<InprocLink>>;
  // The two ends; `first` and `second` are their users' bells. `capacity`: bytes under way in one direction, at least 1.
  static Pair make_pair(BellRef first, BellRef second, size_t capacity = 64 << 10);
  ~InprocLink() override { close(); }

  int64_t try_send(ConstBytes data) override;
  int64_t try_recv(Bytes data) override;
  const Status& error() const override { return error_; }
  void hang_up() override { close(); }
  // What a dying process does to its connections. The peer still receives what was sent before.
  void close();

 private:
  struct Pipe;
  InprocLink(std::shared_ptr<Pipe> pipe, int side, BellRef peer) : pipe_(std::move(pipe)), side_(side), peer_bell_(peer) {}
  int64_t broken();

  std::shared_ptr<Pipe> pipe_;
  int side_;
  BellRef peer_bell_;
  Status error_;
};

}  // namespace hvd
