// Device operations in a set of one rank, which need no communication.
#pragma once
#include <memory>
#include <vector>

#include "collectives/comm.h"
#include "engine/operation.h"

namespace hvd {

class Alone {
 public:
  // True if the result equals the tensor itself.
  static bool fits(const Response& response, const Comm& comm);
  // Launch a copy if the output is elsewhere, and record the completion.
  Status start(const Response& response, const std::vector<OperationPtr>& operations);

 private:
  Device::Stream stream_ = nullptr;
};

}  // namespace hvd
