// Link decorator that injects faults by a script (for tests); the code under test is unaware of it.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>

#include "transport/link.h"
#include "transport/wakeup_event.h"

namespace hvd {

// Faults to inject, at byte counts or call counts.
struct FaultScript {
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  uint64_t cut_after_sent = kNever;                   // bytes after which the connection closes, as if the process died
  uint64_t cut_after_received = kNever;               // bytes received after which the connection closes
  // Bytes after which the caller sleeps once, as if the system suspended the process.
  uint64_t nap_after_received = kNever;
  int nap_ms = 0;
  size_t piece = std::numeric_limits<size_t>::max();  // maximum bytes moved by one call
  int stall_calls = 0;                                // number of consecutive calls that move nothing ...
  int stall_every = 1;                                // ... before each n-th call that may
};

class FaultyLink final : public Link {
 public:
  // `own_wakeup`: wakeup event of the link's user, triggered when a call stalls because no peer would wake it then.
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

  std::unique_ptr<Link> inner_;  // null once cut; the peer's connection is then closed too
  FaultScript script_;
  WakeupEvent own_wakeup_;
  uint64_t sent_ = 0, received_ = 0;
  int stalled_ = 0, passed_ = 0;
  bool napped_ = false;
  Status cut_;
};

}  // namespace hvd
