// One call of the foreign function: reads and checks XLA's frame and converts it to engine requests.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "frontend/api.h"
#include "jax/xla_ffi.h"

namespace hvd::jax {

// Why a call was refused or failed. `code` 0: no failure.
struct Failure {
  int32_t code = 0;
  std::string message;
  explicit operator bool() const { return code != 0; }
};

constexpr size_t kNumbers = 6;    // Per tensor: kind, frontend, op, root, process set, wire.
constexpr int32_t kPassOn = -1;   // Additional kind: nothing is sent, the result is the argument.
// Additional kind: nothing is sent, the result is how often this rank has run the call in this job.
constexpr int32_t kCount = -2;

// Requests of all tensors of a call, submitted together. They point into this object and XLA's frame, so neither may
// move or end before the operations are done.
class Call {
 public:
  explicit Call(const HvdFrontendApi& api) : api_(api) {}
  Failure read(const xla::CallFrame& frame);
  const std::vector<HvdRequest>& requests() const { return requests_; }
  // Copy the result of the i-th request, which has succeeded, from the engine's memory to XLA's buffer.
  Failure take(size_t i, const HvdResult& result) const;
  // After take(): fail if the ranks have run this call's branch different numbers of times.
  Failure check_steps() const;
  int32_t devices() const { return devices_; }  // devices of this process at compilation

 private:
  Failure add(HvdRequest request, const xla::Buffer& in, const xla::Buffer& out);
  void add_steps(const HvdRequest& like);

  const HvdFrontendApi& api_;
  std::vector<std::string> names_, groups_;
  std::string steps_;  // Name of the operation that compares counts; "": not compared.
  std::array<int64_t, 2> count_{}, most_{};  // This rank's count and its negative; the maxima over all ranks.
  int64_t pair_ = 2;                         // Shape of both arrays.
  int32_t devices_ = 0;
  std::vector<HvdRequest> requests_;
  std::vector<const xla::Buffer*> places_;  // result buffer of each request
};

}  // namespace hvd::jax
