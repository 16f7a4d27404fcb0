// Worlds of ranks that share simulated GPUs and reduce in each other's memory there.
#pragma once
#include <chrono>
#include <thread>

#include "base/deadline.h"
#include "engine/device/gpu.h"
#include "engine/device/ipc_memory.h"

namespace hvd::testing {

inline uint64_t launches() { return simulated<uint64_t (*)(const char*)>("simcuda_calls")("cuLaunchKernel"); }

// Leftovers of earlier jobs hold the device open, with the kernels that they loaded.
inline void finish_earlier_jobs() {
  const Deadline deadline = Deadline::after(20);
  while (Exchange::sweep() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline Setup shared(bool by_ipc, Log* log = nullptr) {
  Setup setup{.layout = Layout::one_node, .settings = crowded()};
  setup.settings.cuda_library = HVD_SIMULATED_DIR "/libcuda.so.1";
  setup.ipc.wanted = by_ipc;
  setup.ipc.window = 2 << 20;
  if (log) setup.log = log->sink();
  return setup;
}

}  // namespace hvd::testing
