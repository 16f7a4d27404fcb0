// One node of a graph, with the attributes that its kernel needs.
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
  // Name of the node in the graph.
  std::string node;
  // Name of the operation. If empty, ranks match the operation by order.
  std::string name;
  bool grouped = false;
  // True if the node might be in a nested loop.
  bool nested = false;
  // True if the node runs eagerly. The caller's thread then waits for it.
  bool awaited = false;
  int32_t process_set = 0, op = 1, root = 0, wire = 0;
  double prescale = 1, postscale = 1;
};

// Read the attributes of the node. Errors are reported to TensorFlow.
std::unique_ptr<Kernel> make_kernel(Kind kind, bool grouped, TF_OpKernelConstruction* c);

// Return the name of the operation in this execution of the node.
std::string name_in_loop(const Kernel& kernel, TF_OpKernelContext* ctx);

}  // namespace hvd::tensorflow
