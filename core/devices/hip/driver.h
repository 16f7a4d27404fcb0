// AMD's libamdhip64, loaded at run time: the counterpart of CUDA's driver. Never tested on an AMD GPU.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "devices/cuda/driver.h"
#include "devices/device.h"

namespace hvd {

// Names to look for: first among the libraries already loaded (PyTorch for ROCm brings one), then by the loader.
inline const std::string kHipLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};

// Fill the table from the first of these libraries that exists, without initializing it. An error names all that are
// missing, or the function that one lacks.
Status load_hip(std::span<const std::string> libraries, CudaDriver* out);

// Same with kHipLibraries, initialized (hipInit) once per process and never unloaded; refused in a child forked after
// that.
Status hip_driver(const CudaDriver** out);

// Open GPU number `ordinal` as HIP numbers them; see open_cuda_device().
Status open_hip_device(int ordinal, std::shared_ptr<Device>* out);

}  // namespace hvd
