#pragma once
#include <memory>
#include <string>

#include "devices/device.h"

namespace hvd {

struct CudaDriver;

// GPU number `ordinal` as this process sees them, in its primary context, which frameworks use too. One for the process as long as somebody
// holds it. `library`: see cuda_driver(). An error says which GPUs there are.
Status open_cuda_device(const std::string& library, int ordinal, std::shared_ptr<Device>* out);

// The same over a table that is filled already, by whomever; it lives as long as the process.
Status open_device(const CudaDriver& driver, int ordinal, std::shared_ptr<Device>* out);

}  // namespace hvd
