// A file descriptor that becomes readable once the job of an engine has ended for any reason. It is meant for threads
// that poll descriptors.
#pragma once
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>

#include "engine/observer.h"

namespace hvd {

class EndSignal final : public Observer {
 public:
  // `failures` is the engine's counter of failed operations.
  explicit EndSignal(std::shared_ptr<const std::atomic<uint64_t>> failures)
      : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), failures_(std::move(failures)) {}
  ~EndSignal() override {
    if (fd_ >= 0) ::close(fd_);
  }
  EndSignal(const EndSignal&) = delete;

  // Return the descriptor, or -1 if none was available.
  int fd() const { return fd_; }
  uint64_t failures() const { return failures_->load(std::memory_order_relaxed); }
  void ended(const Status&) override { give(); }
  void give() {
    const uint64_t one = 1;
    (void)!::write(fd_, &one, sizeof one);
  }

 private:
  int fd_;
  const std::shared_ptr<const std::atomic<uint64_t>> failures_;
};

}  // namespace hvd
