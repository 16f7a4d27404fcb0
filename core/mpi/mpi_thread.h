// Thread that executes MPI calls for other threads, one at a time. MPI_Init and MPI_Finalize cannot be interrupted, so
// they run on this thread while the caller waits with a timeout. If an MPI library supports calls from only one thread,
// this thread makes all calls.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

namespace hvd::mpi {

class MpiThread {
 public:
  // The thread is never joined and runs until the process exits, because a call might never return.
  MpiThread();
  MpiThread(const MpiThread&) = delete;

  // Run `work` and wait for it. Return false if it has not finished within `seconds`; a negative value means no limit.
  // After a timeout, `work` may keep running, so it must own everything it uses. Only one caller at a time.
  bool run(std::function<void()> work, double seconds = -1);

  // Start `work` for a caller that does something else in the meantime. The caller must then call ended() until it
  // returns true.
  void begin(std::function<void()> work);
  // Wait up to `seconds` for the work to finish. Return true if it has finished.
  bool ended(double seconds);

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> work;
    bool busy = false;
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace hvd::mpi
