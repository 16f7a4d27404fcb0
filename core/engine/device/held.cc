#include "engine/device/held.h"

#include <chrono>
#include <thread>

#include "base/deadline.h"

namespace hvd {

constexpr double kPatience = 5.0;  // seconds for a device to finish

void leave_behind(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto* const all = new std::deque<std::shared_ptr<void>>;  // never destroyed, so the memory stays reachable
  std::lock_guard lock(mutex);
  all->push_back(std::move(memory));
}

void Held::keep(std::shared_ptr<const Completion> until, std::shared_ptr<void> memory) {
  std::lock_guard lock(mutex_);
  kept_.emplace_back(std::move(until), std::move(memory));
}

Status Held::sweep() {
  std::lock_guard lock(mutex_);
  while (!kept_.empty()) {
    bool passed = false;
    HVD_RETURN_IF_ERROR(kept_.front().first->passed(&passed));
    if (!passed) break;
    kept_.pop_front();
  }
  return {};
}

Held::~Held() {
  const Deadline deadline = Deadline::after(kPatience);
  while (sweep().ok() && !kept_.empty() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (auto& [until, memory] : kept_) {
    leave_behind(std::const_pointer_cast<Completion>(until));
    leave_behind(std::move(memory));
  }
}

}  // namespace hvd
