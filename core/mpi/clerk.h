// A thread that makes calls for others, one at a time. MPI_Init and MPI_Finalize cannot be interrupted, so whoever wants them done has them
// done here and waits with a deadline; and a library that allows one thread only is called from this one.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

namespace hvd::mpi {

class Clerk {
 public:
  // The thread lives as long as the process: it may be inside a call that never returns.
  Clerk();
  Clerk(const Clerk&) = delete;

  // Has `work` done and waits for its end. False: it has not ended within so many seconds (negative: no limit), and may be under way for
  // ever, so it must own what it uses. One caller at a time.
  bool run(std::function<void()> work, double seconds = -1);

  // The same in parts, for who has something to look at meanwhile: `begin`, and `ended` until it says true.
  void begin(std::function<void()> work);
  bool ended(double seconds);  // waits so long at most

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
