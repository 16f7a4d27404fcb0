// One operation on arrays of MXNet's: on its way through MXNet's engine to ours and back.
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "c_api.h"
#include "face/api.h"

namespace hvd::mxnet {

constexpr int32_t kFace = 4;  // horovod/common/faces.py

// What horovod.mxnet asks for. Numbers as in HvdRequest.
struct Order {
  int32_t kind, op, root, process_set, wire, priority;
  double prescale, postscale;
  const char* name;          // of the whole operation, for its turn and for messages
  int32_t grouped, count;    // members
  const char* const* names;  // of the members
  const int32_t* dtypes;
  const Handle* in;
  const Handle* out;         // the same as `in`: in place. Allgather, alltoall: one array for all, which stands for the result
  const int64_t* splits;
  int32_t splits_count;
};

// What has arrived where the size was not known beforehand.
struct Gathered {
  struct Piece {
    std::vector<std::byte> bytes;
    std::vector<int64_t> sizes;
  };
  std::vector<Piece> pieces;  // by member
};

const HvdFaceApi* engine();
void attach(const HvdFaceApi* api);

struct Call;

struct Member {
  Call* call = nullptr;
  std::string name;
  Array in, out;  // `out` is empty where the operation is in place
  std::vector<int64_t> shape;
  int32_t dtype = 0;
};

struct Call {
  // Throws std::runtime_error for arrays that MXNet does not take.
  explicit Call(const Order& order);

  // Hands the operation to MXNet's engine, which owns the call from then on. Throws std::runtime_error, and has deleted it.
  static void push(std::unique_ptr<Call> call, int32_t priority);

  HvdRequest common{};
  std::string name;
  std::string turn;  // names of process sets do not meet
  bool grouped = false;
  std::vector<Member> members;
  Array result;  // stands for what is gathered
  std::vector<int64_t> splits;
  std::shared_ptr<Gathered> gathered;

  void run(const OnComplete& done);  // the arrays are ready
  void start();                      // and it is this operation's turn
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
  std::string failure_;  // the first one, as MXNet's users get it
};

}  // namespace hvd::mxnet
