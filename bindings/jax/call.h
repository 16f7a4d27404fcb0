// One call of our foreign function: what XLA's frame says, checked and put into the engine's words.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "face/api.h"
#include "jax/xla_ffi.h"

namespace hvd::jax {

// Why a call was refused, or what went wrong in it. `code` 0: nothing.
struct Failure {
  int32_t code = 0;
  std::string message;
  explicit operator bool() const { return code != 0; }
};

constexpr size_t kNumbers = 6;    // of each tensor: kind, face, op, root, process set, wire
constexpr int32_t kPassOn = -1;   // a kind of ours: nothing is sent, the result is the argument
constexpr int32_t kCount = -2;    // a kind of ours: nothing is sent, the result is how often this rank has come here in this job

// Requests of all tensors of a call, submitted together. They point into the call and into XLA's frame, so neither may move nor end
// before the operations are done.
class Call {
 public:
  explicit Call(const HvdFaceApi& api) : api_(api) {}
  Failure read(const xla::CallFrame& frame);
  const std::vector<HvdRequest>& requests() const { return requests_; }
  // The i-th request has succeeded: what the engine keeps its result in goes to where XLA expects it.
  Failure take(size_t i, const HvdResult& result) const;
  // After take(): a failure if ranks have come to the branch that this call is in unequally often.
  Failure check_steps() const;
  int32_t devices() const { return devices_; }  // of this process, when the program was made

 private:
  Failure add(HvdRequest request, const xla::Buffer& in, const xla::Buffer& out);
  void add_steps(const HvdRequest& like);

  const HvdFaceApi& api_;
  std::vector<std::string> names_, groups_;
  std::string steps_;  // name of the operation that compares counts; "": they are not compared
  std::array<int64_t, 2> count_{}, most_{};  // this rank's count and its negative; the greatest of all ranks'
  int64_t pair_ = 2;                         // shape of both
  int32_t devices_ = 0;
  std::vector<HvdRequest> requests_;
  std::vector<const xla::Buffer*> places_;  // of each request's result
};

}  // namespace hvd::jax
