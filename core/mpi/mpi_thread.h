// Thread that executes MPI calls for other threads, one at a time. MPI_Init and MPI_Finalize cannot be interrupted, so
// they run on this thread while the caller waits with a timeout. If a library can be used by one thread only, this
// thread makes all calls.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

namespace hvd::mpi {

class MpiThread {
 public:
  // The thread is never joined and lives until the process ends, because a call might never return.
  MpiThread();
  MpiThread(const MpiThread&) = delete;

  // Run `work` and wait for it. Return false if it has not finished within `seconds`; a negative value means no limit.
  // `work` can then run forever, so it must own what it uses. Only one caller at a time.
  bool run(std::function<void()> work, double seconds = -1);

  // Run `work` for a caller that does other work in the meantime: call begin(), then ended() until it returns true.
  void begin(std::function<void()> work);
  // Wait at most `seconds` for the work to end. Return true if it has ended.
  bool ended(double seconds);

 private:
  struct Desk {
    std::mutex mutex;
    std::condition_variable changed;
    std::function<void()> work;
    bool busy = false;
  };
  std::shared_ptr<Desk> desk_;
};

}  // namespace hvd::mpi
