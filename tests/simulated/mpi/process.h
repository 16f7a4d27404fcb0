// State of this process's MPI: initialization, permitted threads, and created objects.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "handles.h"
#include "world.h"

namespace simmpi {

struct Communicator {
  uint64_t context = 0, operations = 0;
  std::vector<int> members;  // ranks in the world
  int rank = 0;  // own rank among them
  bool freed = false;
};

// An operation that was begun and is polled by MPI_Test.
struct Pending {
  Communicator* comm = nullptr;
  Exchange* exchange = nullptr;
  std::function<void()> take;  // copies received data to its place
  bool never = false, breaks = false, done = false;
  long looks = 0;
};

class Process {
 public:
  static Process& get();

  // Ends the process if MPI is not initialized or has been finalized, or if this thread may not call it now.
  // One object for each call, alive during the call.
  class Call {
   public:
    explicit Call(const char* name);
    ~Call();
    Call(const Call&) = delete;
    bool fails() const { return fails_; }

   private:
    bool fails_;
  };

  std::mutex mutex;  // of the following members
  bool started = false, ended = false;
  int level = 3;
  long first = 0;  // the thread that initialized MPI
  std::vector<std::pair<int (*)(H, int, void*, void*), std::pair<void*, void*>>> attributes;  // of MPI_COMM_SELF: function, value, extra

  Communicator& communicator(H handle);
  H created(Communicator comm);
  std::vector<int>& group(H handle);
  H created(std::vector<int> group);
  Pending& pending(H handle);
  H created(Pending pending);

 private:
  Process();
  std::deque<Communicator> communicators_;  // the world's and this process's own first
  std::deque<std::vector<int>> groups_;
  std::deque<Pending> pending_;
};

}  // namespace simmpi
