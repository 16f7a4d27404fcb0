// Options, set as SIMCUDA_NAME in the environment or with simcuda_set("name", value).
#pragma once

#include <atomic>
#include <cstdint>

namespace simcuda {

using Knob = std::atomic<int64_t>;

struct Knobs {
  // Properties.
  Knob devices{1};  // number of the host's GPUs; CUDA_VISIBLE_DEVICES chooses among them
  Knob version{13000};  // result of cuDriverGetVersion
  Knob memory{16LL << 30};  // bytes of each device, for each process
  Knob capability{90};       // 10 * major + minor
  Knob no_ipc{0};  // 1: handles cannot be opened; 2: nor created
  Knob jit{1};  // 0: PTX cannot be compiled (221)
  // Behaviour.
  Knob seed{1};  // of the random delays and choices; each HOROVOD_RANK has its own
  Knob delay_us{100};  // largest delay before an item; sometimes ten times as long
  Knob sync_chance{0};  // percentage of the calls that may wait for the device which do
  // Faults.
  Knob fail_alloc{0};  // k: the k-th allocation from now fails
  Knob fail_pin{0};  // k: the k-th cuMemAllocHost from now fails
  Knob fault{0};  // this error is sticky from now on
  // Checks.
  Knob watch{0};             // 1: calls that may wait for the device are violations
  Knob collect{0};           // 1: violations are collected, not fatal
};

Knobs& knobs();

// The knob of that name, null if there is none.
Knob* find_knob(const char* name);

// Decrements a countdown; returns true on the k-th call.
bool strikes(Knob& countdown);

}  // namespace simcuda
