// Request from outside to end the job, for example from a launcher that has lost a host, before any link of this engine
// notices. The driver's next turn, or the next check inside a running collective, ends the job as if a peer were lost.
#pragma once
#include <atomic>
#include <mutex>
#include <utility>

#include "base/status.h"

namespace hvd {

class Surrender {
 public:
  // Request the end of the job. Callable from any thread; the first request counts.
  void demand(Status why) {
    std::lock_guard lock(mutex_);
    if (demanded()) return;
    why_ = std::move(why);
    demanded_.store(true, std::memory_order_seq_cst);
  }

  // ---- called by the driver -----------------------------------------------------------------------------------------
  bool demanded() const { return demanded_.load(std::memory_order_seq_cst); }
  // Valid once demanded() is true; never changes afterwards.
  const Status& why() const { return why_; }

 private:
  std::mutex mutex_;
  std::atomic<bool> demanded_{false};
  Status why_;
};

}  // namespace hvd
