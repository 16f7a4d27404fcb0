#include "devices/cuda/kernels.h"

#include <algorithm>
#include <string>

namespace hvd {
namespace {

// Return the usual cause of a load failure, for the error message.
const char* kernel_hint(int code) {
  switch (code) {
    case 209: return "; the GPU is older than the kernels, which need compute capability 7.0";
    case 218: return "; the driver's compiler rejects the kernels";
    case 221:
      return "; the driver's compiler is missing: libnvidia-ptxjitcompiler.so.1, which a container gets with the capability 'compute'";
    case 222: return "; the driver is too old for the kernels; 530 or newer is needed";
    default: return "";
  }
}

}  // namespace

Status CudaKernels::load_module() {
  // Values of the CUDA JIT compiler's option enumeration.
  constexpr int kErrorLog = 5, kErrorLogBytes = 6;
  std::vector<char> log(16 << 10);
  int options[] = {kErrorLog, kErrorLogBytes};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  if (const int code = driver_.module_load(&module_, kernels::kPtx, 2, options, values); code != 0) {
    module_ = nullptr;
    std::string why = "the kernels cannot be loaded: " + driver_.describe(code) + kernel_hint(code);
    log.back() = 0;
    if (log.front()) why += " (the driver says: " + std::string(log.data()) + ")";
    return Status(Code::internal, why);
  }
  for (const kernels::Kernel& kernel : kernels::all()) {
    if (const int code = driver_.module_function(&functions_.emplace_back(), module_, kernel.name); code != 0) {
      return Status(Code::internal, std::string("the kernel ") + kernel.name + " cannot be loaded: " + driver_.describe(code));
    }
  }
  return {};
}

Status CudaKernels::load(const std::function<Status(CudaDriver::Stream*)>& make_stream) {
  std::lock_guard lock(mutex_);
  if (asked_) return status_;
  asked_ = true;
  status_ = load_module();
  CudaDriver::Stream stream = nullptr;
  if (status_.ok()) status_ = make_stream(&stream);
  // Launch each kernel once. All-zero parameters make a kernel do nothing.
  size_t most = 0;
  for (const kernels::Kernel& kernel : kernels::all()) most = std::max(most, kernel.parameter_bytes);
  const std::vector<uint64_t> zeros(most / sizeof(uint64_t) + 1);
  for (size_t i = 0; i < kernels::all().size() && status_.ok(); ++i) status_ = launch(i, zeros.data(), {1, 1}, stream);
  return status_;
}

void CudaKernels::unload() {
  if (module_) driver_.module_unload(module_);
  module_ = nullptr;
}

Status CudaKernels::launch(size_t kernel, const void* parameters, kernels::Geometry geometry, CudaDriver::Stream stream) const {
  void* arguments[] = {const_cast<void*>(parameters)};
  const int code = driver_.launch(functions_[kernel], geometry.blocks, 1, 1, geometry.threads, 1, 1, 0, stream, arguments, nullptr);
  return code == 0 ? Status() : driver_.check(code, "cuLaunchKernel").with(kernels::all()[kernel].name);
}

}  // namespace hvd
