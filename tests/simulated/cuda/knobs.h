// What can be set from outside, as SIMCUDA_NAME in the environment or with simcuda_set("name", value).
#pragma once

#include <atomic>
#include <cstdint>

namespace simcuda {

using Knob = std::atomic<int64_t>;

struct Knobs {
  // What there is.
  Knob devices{1};           // how many GPUs the host has; CUDA_VISIBLE_DEVICES chooses among them
  Knob version{13000};       // what cuDriverGetVersion says
  Knob memory{16LL << 30};   // bytes of each device, for each process
  Knob capability{90};       // 10 * major + minor
  Knob no_ipc{0};            // 1: handles cannot be opened; 2: not even made
  Knob jit{1};               // 0: PTX cannot be compiled (221)
  // How it behaves.
  Knob seed{1};              // of the random delays and choices; each HOROVOD_RANK has its own
  Knob delay_us{100};        // most that a stream waits before an item, now and then ten times as long
  Knob sync_chance{0};       // per cent of the calls that may wait for the device which do
  // Faults.
  Knob fail_alloc{0};        // k: the k-th allocation from here fails
  Knob fail_pin{0};          // k: the k-th cuMemAllocHost from here fails
  Knob fault{0};             // this error is sticky from now on
  // Checks.
  Knob watch{0};             // 1: calls that may wait for the device are violations
  Knob collect{0};           // 1: violations are collected, not fatal
};

Knobs& knobs();

// The knob of that name, null when there is none.
Knob* find_knob(const char* name);

// Takes one from a countdown: true when this was the k-th.
bool strikes(Knob& countdown);

}  // namespace simcuda
