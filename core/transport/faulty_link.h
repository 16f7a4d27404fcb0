// Link decorator for tests that injects faults according to a script. The code under test sees an ordinary link.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>

#include "transport/link.h"
#include "transport/wakeup_event.h"

namespace hvd {

// Faults to inject, triggered by byte counts or call counts.
struct FaultScript {
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  // Number of bytes sent after which the connection closes, as if the process had died.
  uint64_t cut_after_sent = kNever;
  // Number of bytes received after which the connection closes.
  uint64_t cut_after_received = kNever;
  // Number of bytes received after which the caller sleeps once for nap_ms, as if the system had suspended the process.
  uint64_t nap_after_received = kNever;
  int nap_ms = 0;
  // Maximum number of bytes that one call moves.
  size_t piece = std::numeric_limits<size_t>::max();
  // Length of a stall: number of consecutive calls that move nothing.
  int stall_calls = 0;
  // Interval between stalls: number of calls that could move bytes.
  int stall_every = 1;
};

class FaultyLink final : public Link {
 public:
  // `own_wakeup` is the wakeup event of the link's own engine. A stalled call triggers it, because no peer would wake the engine
  // afterwards.
  FaultyLink(std::unique_ptr<Link> inner, FaultScript script, WakeupEvent own_wakeup);

  int64_t try_send(ConstBytes data) override;
  int64_t try_recv(Bytes data) override;
  const Status& error() const override { return inner_ ? inner_->error() : cut_; }
  int fd() const override { return inner_ ? inner_->fd() : -1; }
  short wanted() const override { return inner_ ? inner_->wanted() : 0; }
  void before_sleep() override {
    if (inner_) inner_->before_sleep();
  }
  double unanswered() override { return inner_ ? inner_->unanswered() : 0; }
  void hang_up() override {
    if (inner_) inner_->hang_up();
  }
  void clear_wanted() override {
    if (inner_) inner_->clear_wanted();
  }

 private:
  bool stalls();
  int64_t cut(const char* after);
  size_t limit(size_t bytes, uint64_t moved, uint64_t cut_after) const;

  // Wrapped link, or null once the connection has been cut, which also closes the peer's side.
  std::unique_ptr<Link> inner_;
  FaultScript script_;
  WakeupEvent own_wakeup_;
  uint64_t sent_ = 0, received_ = 0;
  int stalled_ = 0, passed_ = 0;
  bool napped_ = false;
  Status cut_;
};

}  // namespace hvd
