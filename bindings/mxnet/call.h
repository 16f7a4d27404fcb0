// One operation on MXNet arrays. MXNet's engine schedules it, and Horovod's engine executes it.
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

// Number that identifies the MXNet frontend (src/horovod/common/frontends.py).
constexpr int32_t kFrontend = 4;

// Request from horovod.mxnet. Its numeric codes are those of HvdRequest.
struct Order {
  int32_t kind, op, root, process_set, wire, priority;
  double prescale, postscale;
  // Name of the operation as a whole, used to order operations (turns.h) and in error messages.
  const char* name;
  // `grouped` is nonzero for a group of operations; `count` is the number of tensors.
  int32_t grouped, count;
  // Name of each tensor's operation.
  const char* const* names;
  const int32_t* dtypes;
  const Handle* in;
  // Output arrays; equal to `in` for an in-place operation. For allgather and alltoall, a single placeholder array, which becomes ready
  // when the results of all tensors are available.
  const Handle* out;
  const int64_t* splits;
  int32_t splits_count;
};

// Received data, whose size is unknown before the operation has completed.
struct Gathered {
  struct Piece {
    std::vector<std::byte> bytes;
    std::vector<int64_t> sizes;
  };
  // Data received for each tensor.
  std::vector<Piece> pieces;
};

const HvdFrontendApi* engine();
void attach(const HvdFrontendApi* api);

struct Call;

struct Member {
  Call* call = nullptr;
  std::string name;
  // Input and output arrays. `out` is empty if the operation is in place.
  Array in, out;
  std::vector<int64_t> shape;
  int32_t dtype = 0;
};

// One operation and its tensors. MXNet's engine owns it once it is pushed.
struct Call {
  // Throws std::runtime_error if MXNet does not accept an array.
  explicit Call(const Order& order);

  // Pass the operation to MXNet's engine, which then owns the call. On failure, delete the call and throw
  // std::runtime_error.
  static void push(std::unique_ptr<Call> call, int32_t priority);

  HvdRequest common{};
  std::string name;
  // Key by which operations are ordered (turns.h): operations with the same key run one after another. It contains the process set.
  std::string turn;
  bool grouped = false;
  std::vector<Member> members;
  // MXNet placeholder array that becomes ready when the gathered data are available.
  Array result;
  std::vector<int64_t> splits;
  std::shared_ptr<Gathered> gathered;

  // Start the operation, or wait until earlier operations with the same name have finished (turns.h). Called when the
  // arrays are ready.
  void run(const OnComplete& done);
  // Start the operation. Call this only after all earlier operations with the same name have finished.
  void start();
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
  // First failure, as shown to MXNet users.
  std::string failure_;
};

}  // namespace hvd::mxnet
