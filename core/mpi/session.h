// MPI session of this process. MPI is initialized either by the engine or by the program, and finalized by whichever
// initialized it. A process has one session, which any number of engines use in turn, because MPI cannot be initialized
// twice.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "mpi/library.h"
#include "mpi/mpi_thread.h"

namespace hvd::mpi {

struct StartOptions {
  std::string library;
  // Launcher that started the processes: "Open MPI", "MPICH", or empty if unknown.
  std::string launcher;
  // True to request MPI_THREAD_FUNNELED instead of a higher thread level.
  bool one_thread = false;
  // Maximum number of seconds for MPI_Init, which waits for the other processes.
  double patience = 30;
};

class Session {
 public:
  // Initialize MPI, or use it if the program has already initialized it. Later calls return the existing session. The
  // error is invalid_argument if MPI cannot be used: the library is unsuitable, the program has finalized MPI or
  // initialized it with too low a thread level, MPI_Comm_spawn started the process, or an earlier engine left MPI
  // unusable. The error is timeout if MPI_Init has not returned.
  static Status open(const StartOptions& options, Session** out);
  // Return the session of this process, or null if there is none. The session of a parent process does not count.
  static Session* current();

  const Library& library() const { return *library_; }
  const Abi& abi() const { return library_->abi; }
  // Return the rank of this process in MPI_COMM_WORLD.
  int rank() const { return rank_; }
  int size() const { return size_; }
  Threads level() const { return level_; }
  // True if the engine initialized MPI, false if the program did.
  bool ours() const { return ours_; }

  // Run `work`, which calls MPI, on the calling thread or, if MPI supports only one thread, on the MPI thread. Only one caller at a time.
  // Return an error if MPI is finalized.
  Status use(const std::function<Status()>& work);
  // Return an error as soon as MPI becomes unusable. Call this in every loop within `work`.
  Status usable() const;
  // Mark MPI as unusable. After an abandoned collective, the data of the next one would be undefined.
  void spoil(const std::string& why);

  // Function that is called regularly while an uninterruptible MPI call runs. If it returns an error, the wait for the call ends.
  using Look = std::function<Status()>;

  // Return the communicator of these ranks of MPI_COMM_WORLD. The first call creates it, and all of these ranks must take part. An error
  // from `look` ends the wait and makes MPI unusable. Do not call this within `work`.
  Status communicator(const std::vector<int>& ranks, const Look& look, Handle* out);
  // Release the communicator. All of its ranks must call this at the same point in the order of operations.
  void forget(const std::vector<int>& ranks, const Look& look);

  // Finalize MPI if the engine initialized it and it is still usable. MPI must not be used afterwards. MPI_Finalize
  // waits for the other processes. Return false if it has not finished within `seconds`; a later call continues the
  // wait.
  bool finish(double seconds);

 private:
  Session() = default;
  Status begin(const StartOptions& options);
  Status join();
  Status look_around();
  Status watch_finalize();
  Status make(const std::vector<int>& ranks, Handle* out) const;
  Status attended(const std::function<Status()>& work, const Look& look);
  static int finalizing(Handle comm, int key, void* value, void* extra);

  const Library* library_ = nullptr;
  int rank_ = 0, size_ = 1;
  Threads level_ = Threads::single;
  bool ours_ = false;
  pid_t pid_ = 0;
  MpiThread mpi_thread_;
  std::mutex using_;
  // True once MPI_Finalize has started.
  std::atomic<bool> over_{false};
  std::atomic<bool> spoilt_{false};
  // Reason why MPI is unusable. Set before spoilt_ becomes true.
  std::string why_spoilt_;
  std::map<std::vector<int>, Handle> communicators_;
  bool finishing_ = false;
};

}  // namespace hvd::mpi
