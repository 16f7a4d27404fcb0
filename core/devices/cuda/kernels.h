// The kernels of core/kernels, which are loaded into a CUDA context once and launched by index.
#pragma once
#include <functional>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "devices/cuda/driver.h"
#include "kernels/launch.h"

namespace hvd {

// The context must be current on the calling thread for every call.
class CudaKernels {
 public:
  explicit CudaKernels(const CudaDriver& driver) : driver_(driver) {}
  CudaKernels(const CudaKernels&) = delete;

  // Load all kernels, and launch each of them once on a stream from `make_stream`. Later calls return the result of the
  // first call.
  Status load(const std::function<Status(CudaDriver::Stream*)>& make_stream);
  void unload();
  Status launch(size_t kernel, const void* parameters, kernels::Geometry geometry, CudaDriver::Stream stream) const;

 private:
  Status load_module();

  const CudaDriver& driver_;
  std::mutex mutex_;
  bool asked_ = false;
  Status status_;
  CudaDriver::Module module_ = nullptr;
  // Loaded functions, in the order of kernels::all().
  std::vector<CudaDriver::Function> functions_;
};

}  // namespace hvd
