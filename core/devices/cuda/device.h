#pragma once
#include <memory>
#include <string>

#include "devices/device.h"

namespace hvd {

// Open GPU number `ordinal`, as this process numbers them, in its primary context, which frameworks use too. Callers in
// one process share the device object while it is in use. `library` is described at cuda_driver(). An error lists the
// available GPUs.
Status open_cuda_device(const std::string& library, int ordinal, std::shared_ptr<Device>* out);

}  // namespace hvd
