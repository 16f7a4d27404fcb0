#include "engine/device/in_flight.h"

namespace hvd {

void InFlight::add(const std::shared_ptr<const Completion>& completion, std::string what) {
  constexpr size_t kMany = 64;
  while (!launched_.empty()) {
    const auto first = launched_.front().first.lock();
    bool forgotten = !first;
    if (first && launched_.size() > kMany && !first->reached(&forgotten).ok()) break;
    if (!forgotten) break;
    launched_.pop_front();
  }
  launched_.emplace_back(completion, std::move(what));
}

void InFlight::fail(const Status& why) {
  for (const auto& [weak, what] : launched_) {
    const auto completion = weak.lock();
    bool there = false;
    if (completion && (!completion->reached(&there).ok() || !there)) completion->fail(why.with(what));
  }
  launched_.clear();
}

}  // namespace hvd
