// Whose turn it is among operations of one name. MXNet's engine runs what is ready, in an order that may differ between ranks; operations
// of one name are matched between ranks by the order in which the program asked for them. So they go one after another, in that order.
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
  // The program asks for it.
  void enter(const std::string& name, Call* call);
  // Its arrays are ready. True: it is its turn; false: it is somebody else's, whose leave() will return it.
  bool ready(const std::string& name, Call* call);
  // It is over, or will never be ready. Returns the next one if it is ready, else null. Harmless for one that has left.
  Call* leave(const std::string& name, Call* call);

 private:
  struct Place {
    Call* call;
    bool ready;
  };
  std::mutex mutex_;
  std::unordered_map<std::string, std::deque<Place>> waiting_;
};

// Of this process; never destroyed, since threads of MXNet's may come while it ends.
Turns& turns();

}  // namespace hvd::mxnet
