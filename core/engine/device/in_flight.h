// Completions of operations that are launched, for as long as somebody may ask for their results: at a bad end those that are not there
// have failed, whatever their events say.
#pragma once
#include <deque>
#include <memory>

#include "engine/device/completion.h"

namespace hvd {

class InFlight {
 public:
  void add(const std::shared_ptr<const Completion>& completion);
  void fail(const Status& why);

 private:
  std::deque<std::weak_ptr<const Completion>> launched_;  // some may be there
};

}  // namespace hvd
