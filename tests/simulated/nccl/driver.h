// The simulated CUDA driver below this NCCL: its extra exports (tests/simulated/cuda/simcuda.h), found at run
// time.
#pragma once
#include <cstddef>
#include <cstdint>

namespace simnccl {

struct Driver {
  void (*enqueue)(void* stream, void (*work)(void*), void* argument, int (*ready)(void*)) = nullptr;
  void* (*at)(uint64_t address, size_t bytes) = nullptr;
  int (*current_device)() = nullptr;
  const char* (*uuid)(int device) = nullptr;
  void (*report_violation)(const char* text) = nullptr;
  int (*get_context)(void** context) = nullptr;
  int (*push_context)(void* context) = nullptr;

  bool found() const { return enqueue && at && current_device && uuid && report_violation && get_context && push_context; }
  void violation(const char* text) const;
};
// The library loaded as libcuda.so.1, or SIMCUDA_LIBRARY. Searched until it is found.
const Driver& driver();

}  // namespace simnccl
