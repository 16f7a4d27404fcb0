// Stream items: all work of one group, or one call, on one communicator is one kernel, which waits in the
// stream for the other ranks.
#pragma once
#include <string>
#include <vector>

#include "communicator.h"

namespace simnccl {

enum class Kind : int { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, recv };
const char* name_of(Kind kind);

struct Task {
  Kind kind;
  ncclComm_t comm;
  void* stream;
  const void* in;
  void* out;
  size_t count;  // as passed to the call
  ncclDataType_t type;
  Reduce how;  // for reductions
  int peer = 0;  // or root
  bool message() const { return kind == Kind::send || kind == Kind::recv; }
  size_t bytes() const { return count * bytes_of(type); }
  std::string text() const;
};

// Enqueues the tasks, all of one communicator and one stream. May wait for the other ranks at the first use
// of a connection.
ncclResult_t launch(ncclComm_t comm, std::vector<Task> tasks);

// For a single rank: a copy or a scaling kernel, at once.
void launch_alone(const Task& task);

}  // namespace simnccl
