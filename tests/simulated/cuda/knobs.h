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
  Knob init{0};              // what cuInit returns
  Knob memory{16LL << 30};   // bytes of each device, for each process
  Knob capability{90};       // 10 * major + minor
  Knob processors{4};        // multiprocessors
  Knob host_alias{0};        // 1: registered memory has another address on the device (attribute 91 is 0)
  Knob no_ipc{0};            // 1: handles cannot be opened; 2: not even made
  Knob not_exportable{0};    // 1: allocations are as those of expandable segments: attribute 10 is 0, no IPC handle
  Knob jit{1};               // 0: PTX cannot be compiled (221)
  Knob peer_access{1};       // cuDeviceCanAccessPeer
  // How it behaves.
  Knob seed{1};              // of the random delays and choices; each HOROVOD_RANK has its own
  Knob delay_us{100};        // most that a stream waits before an item, now and then ten times as long
  Knob sync_chance{0};       // per cent of the calls that may wait for the device which do
  Knob slice_ms{0};          // more than 0: processes on one GPU take turns of so many milliseconds
  Knob reuse{0};             // 1: an allocation gets the address of one of equal size that was freed before
  // Faults.
  Knob fail_alloc{0};        // k: the k-th allocation from here fails
  Knob fail_pin{0};          // k: the k-th cuMemAllocHost from here fails
  Knob fail_register{0};     // k: the k-th cuMemHostRegister from here fails
  Knob fault{0};             // this error is sticky from now on
  Knob fault_launch{0};      // k: the k-th kernel from here ends with 700, which is sticky
  // Checks.
  Knob watch{0};             // 1: calls that may wait for the device are violations
  Knob leaks{0};             // 1: what is left at exit is a violation
  Knob collect{0};           // 1: violations are collected, not fatal
  Knob races{1};             // 0: no check that work on different streams is ordered
  Knob holes{1};             // 0: no check that pages of registered memory are still there
  Knob hang_ms{120000};      // a call that waits longer reports what the streams do
};

Knobs& knobs();

// The knob of that name, null when there is none.
Knob* find_knob(const char* name);

// Takes one from a countdown: true when this was the k-th.
bool strikes(Knob& countdown);

}  // namespace simcuda
