// One node of a graph, as used by its kernel.
#pragma once
#include <memory>
#include <string>

#include "c_api.h"
#include "frontend/api.h"

namespace hvd::tensorflow {

enum Kind : int32_t { kAllreduce = 0, kAllgather = 1, kBroadcast = 2, kAlltoall = 3, kReducescatter = 4, kJoin = HVD_KIND_JOIN, kQuestion };

// Attributes of one node, read when its kernel is created.
struct Kernel {
  Kind kind = kAllreduce;
  std::string node;  // Name of the node.
  std::string name;  // Name of the operation; "": matched by order.
  bool grouped = false;
  bool nested = false;  // May be in a nested loop.
  bool awaited = false;  // Run eagerly: the caller's thread waits for it.
  int32_t process_set = 0, op = 1, root = 0, wire = 0;
  double prescale = 1, postscale = 1;
};

// Read the node's attributes. Errors are reported to TensorFlow.
std::unique_ptr<Kernel> make_kernel(Kind kind, bool grouped, TF_OpKernelConstruction* c);

// Return the operation's name in this execution of the node.
std::string name_in_loop(const Kernel& kernel, TF_OpKernelContext* ctx);

}  // namespace hvd::tensorflow
