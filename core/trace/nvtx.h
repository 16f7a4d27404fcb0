// Ranges for NVIDIA's profilers: an Observer that marks what this rank's engine carries out, named like its operations, in a domain
// "horovod". NCCL marks what it does itself. The library is found at run time; without a profiler its functions do nothing.
#pragma once
#include <memory>
#include <string>

#include "engine/observer.h"

namespace hvd {

class NvtxRanges final : public Observer {
 public:
  // `library`: libnvtx3interop.so.1 or libnvToolsExt.so.1. An error says why it cannot be used.
  static Status open(const std::string& library, std::shared_ptr<NvtxRanges>* out);

  // Of the thread that carries it out, which ends it too.
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
