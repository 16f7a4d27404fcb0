// MPI in this process, initialized by the engine or by the program, and finalized by the same. One per process,
// whatever number of engines use it in turn, because MPI cannot be initialized twice.
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
  std::string library;      // Path of the library.
  std::string launcher;     // Launcher that started the processes, see fits().
  bool one_thread = false;  // Request MPI_THREAD_FUNNELED.
  double patience = 30;     // Seconds for MPI_Init, which waits for the other processes.
};

class Session {
 public:
  // Initialize MPI, or join if the program has done so. Later calls return the existing session. invalid_argument: the
  // library cannot be used, the program has finalized MPI or initialized it with a lower thread level than needed, the
  // process was started by MPI_Comm_spawn, or an earlier engine left MPI unusable. timeout: MPI_Init has not returned.
  static Status open(const StartOptions& options, Session** out);
  // Null if there is none in this process; that of a parent process does not count.
  static Session* current();

  const Library& library() const { return *library_; }
  const Abi& abi() const { return library_->abi; }
  int rank() const { return rank_; }  // rank in MPI_COMM_WORLD
  int size() const { return size_; }
  Threads level() const { return level_; }
  bool ours() const { return ours_; }  // true if MPI was initialized here, not by the program

  // Run `work`, which calls MPI, where the library allows it: on this thread or on the MPI thread. One at a time. An
  // error if MPI is finalized.
  Status use(const std::function<Status()>& work);
  // Return an error as soon as MPI becomes unusable; call it in every loop within `work`.
  Status usable() const;
  // Mark MPI as unusable: a collective was abandoned, so the data of the next one are undefined.
  void spoil(const std::string& why);

  // Polled while an uninterruptible MPI call runs; an error ends the wait for it.
  using Look = std::function<Status()>;

  // Return the communicator of these ranks of MPI_COMM_WORLD. It is created at the first call, which all of them must
  // make. Do not call within `work`. If `look` ends the wait, returns its error and MPI becomes unusable.
  Status communicator(const std::vector<int>& ranks, const Look& look, Handle* out);
  // Release it; all members call this at the same place.
  void forget(const std::vector<int>& ranks, const Look& look);

  // Finalize MPI if the engine initialized it and it is usable. MPI_Finalize waits for the other processes; MPI must
  // not be used any more. Return false if it has not ended after `seconds`; a later call continues waiting.
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
  std::atomic<bool> over_{false};  // MPI_Finalize has started
  std::atomic<bool> spoilt_{false};
  std::string why_spoilt_;  // written before spoilt_
  std::map<std::vector<int>, Handle> communicators_;
  bool finishing_ = false;
};

}  // namespace hvd::mpi
