// Completions of launched operations whose results may still be asked for. If the job ends with an error, those not
// ready are marked as failed, whatever their events say.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "engine/device/completion.h"

namespace hvd {

class InFlight {
 public:
  // `what`: description for messages.
  void add(const std::shared_ptr<const Completion>& completion, std::string what);
  void fail(const Status& why);

 private:
  // Launched operations, some of which may be ready.
  std::deque<std::pair<std::weak_ptr<const Completion>, std::string>> launched_;
};

}  // namespace hvd
