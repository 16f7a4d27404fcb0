// Observer that marks the operations of this rank's engine by name as ranges for NVIDIA's profilers, in the domain
// "horovod". NCCL marks its own work. The NVTX library is loaded at run time; without a profiler, its functions do
// nothing.
#pragma once
#include <memory>
#include <string>

#include "engine/observer.h"

namespace hvd {

class NvtxRanges final : public Observer {
 public:
  // Load `library`, which is libnvtx3interop.so.1 or libnvToolsExt.so.1. Return an error if it cannot be used.
  static Status open(const std::string& library, std::shared_ptr<NvtxRanges>* out);

  // Begin a range. It belongs to the thread that executes the operation, so the same thread must end it.
  void started(const Execution&) override;
  void finished(const Execution&, const Status&) override;

  struct Functions {
    void* (*domain_create)(const char*) = nullptr;
    int (*push)(void*, const void*) = nullptr;
    int (*pop)(void*) = nullptr;
  };
  explicit NvtxRanges(Functions functions);

 private:
  const Functions functions_;
  void* const domain_;
  std::string name_;
};

}  // namespace hvd
