// NCCL operations that were launched and may be unfinished. Polled at intervals, because NCCL errors raise no wakeup.
#pragma once
#include <deque>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "engine/device/by_nccl_sets.h"
#include "engine/device/completion.h"

namespace hvd {

class Launched {
 public:
  // `what`: description for messages.
  void add(std::shared_ptr<const Completion> completion, std::string what);
  bool empty() const { return all_.empty(); }

  // Interval in seconds between calls of look(). An error is that of an operation, or an asynchronous NCCL error in one
  // of the sets.
  static double resting_seconds() { return kLook; }
  Status look(const NcclSets& sets);

  // End of the job because of `why`: mark unfinished operations as failed, whatever their events say. Call before
  // aborting NCCL.
  void fail(const Status& why);
  void clear() { all_.clear(); }

 private:
  static constexpr double kLook = 3e-3;
  struct One {
    std::shared_ptr<const Completion> completion;
    std::string what;
  };
  Status sweep();

  std::deque<One> all_;  // operations in launch order; some may be done
  Clock::time_point next_look_{};
};

}  // namespace hvd
