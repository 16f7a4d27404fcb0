// Floating-point mode of the current thread. A thread that runs the engine's progress loop might flush denormals to
// zero, as XLA's threads and torch.set_flush_denormal do, or use another rounding mode. Without a common mode, ranks
// would compute different bits.
#pragma once
#include <cstdint>

namespace hvd {

// RAII guard that sets the thread's default floating-point mode: rounding to nearest, with denormals. The destructor
// restores the previous mode.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : before_(read()) {
    if (before_ != kDefault) write(kDefault);
  }
  ~DefaultFloatMode() {
    if (before_ != kDefault) write(before_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  // The lowest six bits of the MXCSR register are exception flags, not part of the mode.
  static constexpr uint32_t kFlags = 0x3f, kDefault = 0x1f80;
  static uint32_t read() { return __builtin_ia32_stmxcsr() & ~kFlags; }
  static void write(uint32_t mode) { __builtin_ia32_ldmxcsr(mode); }
  uint32_t before_;
#elif defined(__aarch64__)
  static constexpr uint64_t kDefault = 0;
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
  uint64_t before_;
#else
  static constexpr uint32_t kDefault = 0;
  static uint32_t read() { return kDefault; }
  static void write(uint32_t) {}
  uint32_t before_;
#endif
};

}  // namespace hvd
