// MPI in this process: begun by us or by the program, ended by whoever has begun it. One for the life of the process, whatever number of
// engines use it one after the other, because MPI cannot be begun a second time.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "mpi/clerk.h"
#include "mpi/library.h"

namespace hvd::mpi {

struct Wish {
  std::string library;      // path
  std::string launcher;     // that has started the processes, see fits()
  bool one_thread = false;  // ask for MPI_THREAD_FUNNELED
  double patience = 30;     // seconds for MPI_Init, which waits for the other processes
};

class Session {
 public:
  // Begins MPI, or joins what the program has begun. The second call and those after it give the session that there is.
  // invalid_argument: the library cannot be used, the program has ended MPI already or begun it with a thread level that is too low, the
  // process was started by MPI_Comm_spawn, or an earlier engine has left MPI in a state in which it cannot be used again. timeout: MPI_Init
  // has not returned.
  static Status open(const Wish& wish, Session** out);
  // Null: there is none (in this process; that of a parent does not count).
  static Session* current();

  const Library& library() const { return *library_; }
  const Abi& abi() const { return library_->abi; }
  int rank() const { return rank_; }  // in MPI_COMM_WORLD
  int size() const { return size_; }
  Threads level() const { return level_; }
  bool ours() const { return ours_; }  // begun by us

  // Has `work`, which calls MPI, done where the library allows it: here, or on the one thread. One at a time. An error when MPI is over.
  Status use(const std::function<Status()>& work);
  // An error as soon as MPI cannot be used any more: to be asked in every loop within `work`.
  Status usable() const;
  // From now on it cannot: a collective was left before its end, and what its next one would receive is not known.
  void spoil(const std::string& why);

  // Asked again and again while something that MPI cannot interrupt is under way: an error ends the wait for it.
  using Look = std::function<Status()>;

  // Not within `work`: the communicator of these processes of MPI_COMM_WORLD, made at their first call, which all of them make. Where
  // `look` has ended the wait for that, its error; MPI is spoilt then.
  Status communicator(const std::vector<int>& ranks, const Look& look, Handle* out);
  // All of them, at the same place: it is needed no more.
  void forget(const std::vector<int>& ranks, const Look& look);

  // Ends MPI when it is ours and was not spoilt; MPI_Finalize waits for the other processes. Nothing may use it any more. False: that has
  // not ended within so many seconds; a later call goes on waiting.
  bool finish(double seconds);

 private:
  Session() = default;
  Status begin(const Wish& wish);
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
  Clerk clerk_;
  std::mutex using_;
  std::atomic<bool> over_{false};  // MPI_Finalize has begun
  std::atomic<bool> spoilt_{false};
  std::string why_spoilt_;  // written before spoilt_
  std::map<std::vector<int>, Handle> communicators_;
  bool finishing_ = false;
};

}  // namespace hvd::mpi
