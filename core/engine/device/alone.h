// Operations on tensors of a device in a set of one rank: nothing has to travel.
#pragma once
#include <memory>
#include <vector>

#include "collectives/comm.h"
#include "engine/operation.h"

namespace hvd {

class Alone {
 public:
  // Is the result the tensor itself?
  static bool fits(const Response& response, const Comm& comm);
  // Launches the copy where it is wanted elsewhere, and marks the place on the device's time line.
  Status start(const Response& response, const std::vector<OperationPtr>& operations);

 private:
  Device::Stream stream_ = nullptr;
};

}  // namespace hvd
