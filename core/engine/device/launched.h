// Operations by NCCL that are launched, and not done as far as is known. Looked at from time to time: what NCCL alone notices wakes nobody.
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
  // `what`: it, for messages.
  void add(std::shared_ptr<const Completion> completion, std::string what);
  bool empty() const { return all_.empty(); }

  // Once in so many seconds. An error is an operation's, or what NCCL has noticed by itself in one of the sets.
  static double resting_seconds() { return kLook; }
  Status look(const NcclSets& sets);

  // The job is over, because of `why`: what is not done has failed, whatever its event says. Before NCCL is told.
  void fail(const Status& why);
  void clear() { all_.clear(); }

 private:
  static constexpr double kLook = 3e-3;
  struct One {
    std::shared_ptr<const Completion> completion;
    std::string what;
  };
  Status sweep();

  std::deque<One> all_;  // in this order; some may be done
  Clock::time_point next_look_{};
};

}  // namespace hvd
