// Order of operations with the same name. MXNet's engine runs operations when they are ready, in an order that may
// differ between ranks, but operations of one name are matched between ranks by the order in which the program
// requested them. So they run one after another, in that order.
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
  // The program requests an operation.
  void enter(const std::string& name, Call* call);
  // Its arrays are ready. Return true if it is its turn; otherwise the leave() of another call will return it.
  bool ready(const std::string& name, Call* call);
  // It has finished, or will never be ready. Return the next one if that is ready, otherwise null. No effect if it has
  // left already.
  Call* leave(const std::string& name, Call* call);

 private:
  struct Place {
    Call* call;
    bool ready;
  };
  std::mutex mutex_;
  std::unordered_map<std::string, std::deque<Place>> waiting_;
};

// The process's instance; never destroyed, because MXNet threads may use it at exit.
Turns& turns();

}  // namespace hvd::mxnet
