#pragma once
#include <memory>

#include "engine/operation.h"

namespace hvd::python {

struct Buffer {
  std::shared_ptr<Output> output;
};

}  // namespace hvd::python
