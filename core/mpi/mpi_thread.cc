#include "mpi/mpi_thread.h"

#include <chrono>
#include <utility>

#include "base/float_mode.h"
#include "base/thread.h"

namespace hvd::mpi {

MpiThread::MpiThread() : desk_(std::make_shared<Desk>()) {
  thread_without_signals([desk = desk_] {
    // Set the floating-point mode of this thread, because threads inherit the mode of their creator.
    const DefaultFloatMode floats;
    std::unique_lock lock(desk->mutex);
    for (;;) {
      desk->changed.wait(lock, [&] { return static_cast<bool>(desk->work); });
      const std::function<void()> work = std::exchange(desk->work, nullptr);
      lock.unlock();
      work();
      lock.lock();
      desk->busy = false;
      desk->changed.notify_all();
    }
  }).detach();
}

void MpiThread::begin(std::function<void()> work) {
  std::lock_guard lock(desk_->mutex);
  desk_->work = std::move(work);
  desk_->busy = true;
  desk_->changed.notify_all();
}

bool MpiThread::ended(double seconds) {
  std::unique_lock lock(desk_->mutex);
  const auto done = [&] { return !desk_->busy; };
  if (seconds >= 0) return desk_->changed.wait_for(lock, std::chrono::duration<double>(seconds), done);
  desk_->changed.wait(lock, done);
  return true;
}

bool MpiThread::run(std::function<void()> work, double seconds) {
  begin(std::move(work));
  return ended(seconds);
}

}  // namespace hvd::mpi
