#include "mpi/mpi_thread.h"

#include <chrono>
#include <utility>

#include "base/float_mode.h"
#include "base/thread.h"

namespace hvd::mpi {

MpiThread::MpiThread() : shared_(std::make_shared<Shared>()) {
  thread_without_signals([shared = shared_] {
    // Set the floating-point mode of this thread, because threads inherit the mode of their creator.
    const DefaultFloatMode floats;
    std::unique_lock lock(shared->mutex);
    for (;;) {
      shared->changed.wait(lock, [&] { return static_cast<bool>(shared->work); });
      const std::function<void()> work = std::exchange(shared->work, nullptr);
      lock.unlock();
      work();
      lock.lock();
      shared->busy = false;
      shared->changed.notify_all();
    }
  }).detach();
}

void MpiThread::begin(std::function<void()> work) {
  std::lock_guard lock(shared_->mutex);
  shared_->work = std::move(work);
  shared_->busy = true;
  shared_->changed.notify_all();
}

bool MpiThread::ended(double seconds) {
  std::unique_lock lock(shared_->mutex);
  const auto done = [&] { return !shared_->busy; };
  if (seconds >= 0) return shared_->changed.wait_for(lock, std::chrono::duration<double>(seconds), done);
  shared_->changed.wait(lock, done);
  return true;
}

bool MpiThread::run(std::function<void()> work, double seconds) {
  begin(std::move(work));
  return ended(seconds);
}

}  // namespace hvd::mpi
