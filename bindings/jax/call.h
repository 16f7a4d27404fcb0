// One call of the library's XLA foreign function. The class reads and checks XLA's call frame, and converts it to
// requests for the engine.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "frontend/api.h"
#include "jax/xla_ffi.h"

namespace hvd::jax {

// Reason why a call was rejected or failed. `code` is 0 if there was no failure.
struct Failure {
  int32_t code = 0;
  std::string message;
  explicit operator bool() const { return code != 0; }
};

// Number of integer attributes per tensor: kind, frontend, op, root, process set and wire.
constexpr size_t kNumbers = 6;
// Kind of a local operation that returns its argument.
constexpr int32_t kPassOn = -1;
// Kind of a local operation that returns how often this rank has run the call in this job.
constexpr int32_t kCount = -2;

// Requests for all tensors of a call, submitted together. They point into this object and into XLA's frame, so both
// must stay in place until the operations are done.
class Call {
 public:
  explicit Call(const HvdFrontendApi& api) : api_(api) {}
  Failure read(const xla::CallFrame& frame);
  const std::vector<HvdRequest>& requests() const { return requests_; }
  // Copy the result of the i-th request, which must have succeeded, from the engine's memory to XLA's buffer.
  Failure take(size_t i, const HvdResult& result) const;
  // For a call in a branch of lax.cond, return a failure unless all ranks have run the branch the same number of times.
  // Call this after take().
  Failure check_steps() const;
  // Return the number of devices that this process had at compilation.
  int32_t devices() const { return devices_; }

 private:
  Failure add(HvdRequest request, const xla::Buffer& in, const xla::Buffer& out);
  void add_steps(const HvdRequest& like);

  const HvdFrontendApi& api_;
  std::vector<std::string> names_, groups_;
  // Name of an additional operation, which checks that all ranks have run the current branch the same number of times.
  // Empty if no check is needed.
  std::string steps_;
  // Data of the check that all ranks have run a branch equally often. count_ holds this rank's number of runs and its negative. most_
  // receives the maximum of both over all ranks.
  std::array<int64_t, 2> count_{}, most_{};
  // Shape of the tensors count_ and most_: a single dimension of two elements.
  int64_t pair_ = 2;
  int32_t devices_ = 0;
  std::vector<HvdRequest> requests_;
  // XLA buffers for results: places_[i] receives the result of requests_[i], and is null for the request of the step check.
  std::vector<const xla::Buffer*> places_;
};

}  // namespace hvd::jax
