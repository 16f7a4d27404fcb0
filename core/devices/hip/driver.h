// HIP's library, libamdhip64, found at run time: AMD's counterpart of CUDA's driver. It has never run on an AMD GPU.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "devices/cuda/driver.h"
#include "devices/device.h"

namespace hvd {

// Where it is looked for: first among what the process has loaded (PyTorch for ROCm brings its own), then by the loader.
inline const std::string kHipLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};

// Fills the table from the first of these that is there, without starting it. An error names all that are not, or what one lacks.
Status load_hip(std::span<const std::string> libraries, CudaDriver* out);

// The same of kHipLibraries, started (hipInit) once in a process and never unloaded; refused in a child that was forked after that.
Status hip_driver(const CudaDriver** out);

// GPU number `ordinal` as HIP counts them; as open_cuda_device().
Status open_hip_device(int ordinal, std::shared_ptr<Device>* out);

}  // namespace hvd
