// One execution of a node. It submits the node's tensors to the engine and returns the results to TensorFlow.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "done.h"
#include "node.h"

namespace hvd::tensorflow {

// Code of the TensorFlow frontend (src/horovod/common/frontends.py).
constexpr int32_t kFrontend = 1;

// Return the engine's functions, or null before hvd_tf_attach().
const HvdFrontendApi* engine();

TF_Code tf_code(int32_t code);

struct Call;

struct Member {
  Call* call = nullptr;
  int index = 0;
  TF_Tensor* in = nullptr;
  // Output tensor, or null if its size is not known before the operation.
  TF_Tensor* out = nullptr;
  std::vector<int64_t> shape;
  int dtype = 0;
  // Operation to wait for; set only by blocking kernels.
  HvdWork* work = nullptr;
};

// State of one execution of a node. All tensors of the node share it.
struct Call {
  const Kernel* kernel = nullptr;
  TF_OpKernelContext* ctx = nullptr;
  Done done;
  std::string name;
  std::vector<Member> members;
  std::vector<int64_t> splits;
  std::atomic<int> left{0};
  std::atomic<bool> failed{false};

  ~Call();
  // Record a failure. TensorFlow gets only the first one.
  void fail(TF_Code code, const std::string& why);
  void fail(const TfStatus& status);
};

// Steps of a call before its submission. Each step returns false if the call has failed.
bool take_input(Call* call, Member* m);
bool forward(Call* call, Member* m, const void** in);
bool allocate_scattered(Call* call, Member* m);
bool read_splits(Call* call);

// Store the scalar result of an operation as an output.
void keep_scalar(Call* call, int32_t value);
// Store the engine's result for one tensor in the call.
void keep(Member* m, const HvdResult& result);

}  // namespace hvd::tensorflow
