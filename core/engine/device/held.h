// Memory that a device still reads or writes: kept until it does so no more.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/device/completion.h"

namespace hvd {

// The device may use it for ever: nobody can say when it is done. Kept where tools that look for leaks find it.
void leave_behind(std::shared_ptr<void> memory);

class Held {
 public:
  // Any thread.
  void keep(std::shared_ptr<const Completion> until, std::shared_ptr<void> memory);
  // Lets go of what is no longer needed, as far as it became so in the order in which it was given. An error: the device has failed.
  Status sweep();
  // Sweeps for some seconds until nothing is held. What is left then, or when the device has failed, is never let go.
  ~Held();

 private:
  std::mutex mutex_;
  std::deque<std::pair<std::shared_ptr<const Completion>, std::shared_ptr<void>>> kept_;
};

}  // namespace hvd
