// Memory that a device may still access, kept alive until it no longer does.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/device/completion.h"

namespace hvd {

// Keep the memory forever, because the device may use it and its completion is unknown. It stays reachable for leak
// checkers.
void leave_behind(std::shared_ptr<void> memory);

class Held {
 public:
  // Keep `memory` alive until the completion. Callable from any thread.
  void keep(std::shared_ptr<const Completion> until, std::shared_ptr<void> memory);
  // Release what is no longer needed, in the order in which it was added. An error means that the device has failed.
  Status sweep();
  // Sweep for some seconds until nothing is held. What is left, or everything if the device has failed, is never freed.
  ~Held();

 private:
  std::mutex mutex_;
  std::deque<std::pair<std::shared_ptr<const Completion>, std::shared_ptr<void>>> kept_;
};

}  // namespace hvd
