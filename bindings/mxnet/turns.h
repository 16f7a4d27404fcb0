// Order of operations with the same name. MXNet's engine runs operations when they are ready, in an order that can
// differ between ranks. However, ranks match operations with one name by the order in which the program requested them.
// These operations therefore run one after another, in that order.
#pragma once
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>

namespace hvd::mxnet {

struct Call;

class Turns {
 public:
  // Record that the program has requested an operation.
  void enter(const std::string& name, Call* call);
  // Record that the arrays of an operation are ready. Return true if all earlier operations with its name have finished, so that it can
  // start now. If not, leave() of the preceding operation returns it.
  bool ready(const std::string& name, Call* call);
  // Record that the operation has finished, or will never be ready, and remove it. Return the next operation if it is
  // ready, or null if not. Does nothing if the operation has already been removed.
  Call* leave(const std::string& name, Call* call);

 private:
  struct Place {
    Call* call;
    bool ready;
  };
  std::mutex mutex_;
  std::unordered_map<std::string, std::deque<Place>> waiting_;
};

// Return the only instance in the process. It is never destroyed, because MXNet threads can use it at exit.
Turns& turns();

}  // namespace hvd::mxnet
