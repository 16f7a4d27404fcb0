#include "engine/device/completion.h"

#include <chrono>
#include <thread>

#include "base/deadline.h"

namespace hvd {

// Maximum seconds to wait for a device to finish its work.
constexpr double kPatience = 5.0;

void leave_behind(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  // The list is never destroyed, so that leak checkers see its memory as reachable.
  static auto* const all = new std::deque<std::shared_ptr<void>>;
  std::lock_guard lock(mutex);
  all->push_back(std::move(memory));
}

void DeferredRelease::keep(std::shared_ptr<const Completion> until, std::shared_ptr<void> memory) {
  std::lock_guard lock(mutex_);
  kept_.emplace_back(std::move(until), std::move(memory));
}

Status DeferredRelease::sweep() {
  std::lock_guard lock(mutex_);
  while (!kept_.empty()) {
    bool passed = false;
    HVD_RETURN_IF_ERROR(kept_.front().first->passed(&passed));
    if (!passed) break;
    kept_.pop_front();
  }
  return {};
}

DeferredRelease::~DeferredRelease() {
  const Deadline deadline = Deadline::after(kPatience);
  while (sweep().ok() && !kept_.empty() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (auto& [until, memory] : kept_) {
    leave_behind(std::const_pointer_cast<Completion>(until));
    leave_behind(std::move(memory));
  }
}

void PendingCompletions::add(const std::shared_ptr<const Completion>& completion, std::string what) {
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

void PendingCompletions::fail(const Status& why) {
  for (const auto& [weak, what] : launched_) {
    const auto completion = weak.lock();
    bool there = false;
    if (completion && (!completion->reached(&there).ok() || !there)) completion->fail(why.with(what));
  }
  launched_.clear();
}

}  // namespace hvd
