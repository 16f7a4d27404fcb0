#pragma once
#include <memory>
#include <string>

#include "devices/device.h"

namespace hvd {

// Open GPU number `ordinal`, as this process numbers them, in its primary context, which frameworks use too. Shared
// within the process while in use. `library`: see cuda_driver(). An error lists the available GPUs.
Status open_cuda_device(const std::string& library, int ordinal, std::shared_ptr<Device>* out);

}  // namespace hvd
