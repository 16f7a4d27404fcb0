// One operation on MXNet arrays, on its way through MXNet's engine to the engine of Horovod and back.
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "c_api.h"
#include "frontend/api.h"

namespace hvd::mxnet {

constexpr int32_t kFrontend = 4;  // src/horovod/common/frontends.py

// Request from horovod.mxnet. The codes are those of HvdRequest.
struct Order {
  int32_t kind, op, root, process_set, wire, priority;
  double prescale, postscale;
  const char* name;          // Name of the whole operation, for its turn and for messages.
  int32_t grouped, count;    // Not 0 for a group of operations; number of members.
  const char* const* names;  // Names of the members.
  const int32_t* dtypes;
  const Handle* in;
  // Equal to `in` for an operation in place. For allgather and alltoall it is one array for all members, which stands
  // for the result.
  const Handle* out;
  const int64_t* splits;
  int32_t splits_count;
};

// Received data whose size was not known before.
struct Gathered {
  struct Piece {
    std::vector<std::byte> bytes;
    std::vector<int64_t> sizes;
  };
  std::vector<Piece> pieces;  // one piece for each member
};

const HvdFrontendApi* engine();
void attach(const HvdFrontendApi* api);

struct Call;

struct Member {
  Call* call = nullptr;
  std::string name;
  Array in, out;  // `out` is empty if the operation is in place
  std::vector<int64_t> shape;
  int32_t dtype = 0;
};

// One operation and its members. MXNet's engine owns it once it is pushed.
struct Call {
  // Throws std::runtime_error if MXNet does not accept an array.
  explicit Call(const Order& order);

  // Pass the operation to MXNet's engine, which then owns the call. On failure, delete the call and throw
  // std::runtime_error.
  static void push(std::unique_ptr<Call> call, int32_t priority);

  HvdRequest common{};
  std::string name;
  std::string turn;  // name that orders its turn, different for each process set
  bool grouped = false;
  std::vector<Member> members;
  Array result;  // MXNet array that stands for the gathered data
  std::vector<int64_t> splits;
  std::shared_ptr<Gathered> gathered;

  void run(const OnComplete& done);  // Called when the arrays are ready.
  void start();                      // Called when it is also this operation's turn.
  void keep(Member* member, const HvdResult& result);
  void one_less();

  ~Call();

 private:
  bool fill(Member* member, HvdRequest* request);
  void fail(int32_t code, const std::string& why);
  void finish();

  OnComplete done_;
  std::vector<HvdRequest> requests_;
  std::atomic<int> left_{0};
  std::mutex mutex_;
  std::string failure_;  // the first failure, in the form that MXNet's users see
};

}  // namespace hvd::mxnet
