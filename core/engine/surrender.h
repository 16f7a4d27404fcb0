// Surrender: somebody outside knows that the job is over (a launcher that has lost a host) before any link of this engine tells. The
// driver's next turn, or a look of a collective that is under way, ends the job as if a peer were lost.
#pragma once
#include <atomic>
#include <mutex>
#include <utility>

#include "base/status.h"

namespace hvd {

class Surrender {
 public:
  // Any thread. The first one counts.
  void demand(Status why) {
    std::lock_guard lock(mutex_);
    if (demanded()) return;
    why_ = std::move(why);
    demanded_.store(true, std::memory_order_seq_cst);
  }

  // ---- the driver -----------------------------------------------------------------------------------------------------------
  bool demanded() const { return demanded_.load(std::memory_order_seq_cst); }
  // Once it is demanded; does not change any more.
  const Status& why() const { return why_; }

 private:
  std::mutex mutex_;
  std::atomic<bool> demanded_{false};
  Status why_;
};

}  // namespace hvd
