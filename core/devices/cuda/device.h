#pragma once
#include <memory>
#include <string>

#include "devices/device.h"

namespace hvd {

// Open GPU number `ordinal`, as numbered in this process. The device uses the primary context, which frameworks also
// use. Callers in one process share the device object while it is in use. See cuda_driver() for `library`. The error
// message lists the available GPUs.
Status open_cuda_device(const std::string& library, int ordinal, std::shared_ptr<Device>* out);

}  // namespace hvd
