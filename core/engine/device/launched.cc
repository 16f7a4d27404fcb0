#include "engine/device/launched.h"

#include <chrono>

namespace hvd {

void Launched::add(std::shared_ptr<const Completion> completion, std::string what) {
  constexpr size_t kMany = 64;
  if (all_.size() >= kMany) static_cast<void>(sweep());  // each holds a device event; look() reports failures
  if (all_.empty()) next_look_ = Clock::now() + std::chrono::milliseconds(1);
  all_.push_back({std::move(completion), std::move(what)});
}

Status Launched::sweep() {
  while (!all_.empty()) {
    bool there = false;
    HVD_RETURN_IF_ERROR(all_.front().completion->reached(&there));
    if (!there) break;
    all_.pop_front();
  }
  return {};
}

Status Launched::look(const NcclSets& sets) {
  const auto now = Clock::now();
  if (all_.empty() || now < next_look_) return {};
  next_look_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kLook));
  Status status = sweep();
  if (status.ok() && !all_.empty()) status = sets.async_error();
  return status.ok() ? status : status.with(all_.front().what);
}

void Launched::fail(const Status& why) {
  for (const One& one : all_) {
    bool there = false;
    if (!one.completion->reached(&there).ok() || !there) one.completion->fail(why.with(one.what));
  }
}

}  // namespace hvd
