#include "turns.h"

#include <algorithm>

namespace hvd::mxnet {

void Turns::enter(const std::string& name, Call* call) {
  std::lock_guard lock(mutex_);
  waiting_[name].push_back({call, false});
}

bool Turns::ready(const std::string& name, Call* call) {
  std::lock_guard lock(mutex_);
  auto& queue = waiting_[name];
  for (Place& place : queue) {
    if (place.call == call) place.ready = true;
  }
  return queue.front().call == call;
}

Call* Turns::leave(const std::string& name, Call* call) {
  std::lock_guard lock(mutex_);
  const auto found = waiting_.find(name);
  if (found == waiting_.end()) return nullptr;
  auto& queue = found->second;
  const auto place = std::find_if(queue.begin(), queue.end(), [call](const Place& p) { return p.call == call; });
  if (place == queue.end()) return nullptr;
  const bool had_its_turn = place == queue.begin();
  queue.erase(place);
  if (queue.empty()) {
    waiting_.erase(found);
    return nullptr;
  }
  return had_its_turn && queue.front().ready ? queue.front().call : nullptr;
}

Turns& turns() {
  static Turns* const it = new Turns;
  return *it;
}

}  // namespace hvd::mxnet
