// Completions of operations that are launched, for as long as somebody may ask for their results: at a bad end those that are not there
// have failed, whatever their events say.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "engine/device/completion.h"

namespace hvd {

class InFlight {
 public:
  // `what`: it, for messages.
  void add(const std::shared_ptr<const Completion>& completion, std::string what);
  void fail(const Status& why);

 private:
  std::deque<std::pair<std::weak_ptr<const Completion>, std::string>> launched_;  // some may be there
};

}  // namespace hvd
