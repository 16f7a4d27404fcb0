// One call of our foreign function: what XLA's frame says, checked and put into the engine's words.
#pragma once
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

// Requests of all tensors of a call, submitted together. They point into the call and into XLA's frame, so neither may move nor end
// before the operations are done.
class Call {
 public:
  Failure read(const xla::CallFrame& frame);
  const std::vector<HvdRequest>& requests() const { return requests_; }
  int32_t devices() const { return devices_; }  // of this process, when the program was made

 private:
  std::vector<std::string> names_, groups_;
  int32_t devices_ = 0;
  std::vector<HvdRequest> requests_;
};

}  // namespace hvd::jax
