// The two ways to compile kernels.cu: for a device by NVRTC (scripts/compile-kernels.sh), and for the host by any C++ compiler, for tests
// (tests/simulated/kernels). Only this file differs between them.
#pragma once
#include <cstdint>

#include "kernels/words.h"

namespace hvd::kernels {

// Index of a thread within a launch. Kernels use only one dimension, no shared memory and no barriers, so threads can
// also run one after another.
struct Place {
  uint32_t block, blocks, thread, threads;
  HVD_KERNEL_INLINE uint64_t first() const { return static_cast<uint64_t>(block) * threads + thread; }
  HVD_KERNEL_INLINE uint64_t stride() const { return static_cast<uint64_t>(blocks) * threads; }
};

// ---- Memory access at addresses that are multiples of the size ------------------------------------------------------

#if defined(__CUDACC__)

// Load a value from global memory: the device's own, a peer's, or pinned host memory. The compiler cannot infer from an integer address
// that the memory is global. It may reorder a load with stores, because no thread reads what any thread has written.
template <int kBytes>
HVD_KERNEL_INLINE Words<(kBytes + 3) / 4> load_aligned(uint64_t address) {
  Words<(kBytes + 3) / 4> x;
  if constexpr (kBytes == 1) asm("ld.global.u8 %0, [%1];" : "=r"(x.w[0]) : "l"(address));
  if constexpr (kBytes == 2) asm("ld.global.u16 %0, [%1];" : "=r"(x.w[0]) : "l"(address));
  if constexpr (kBytes == 4) asm("ld.global.u32 %0, [%1];" : "=r"(x.w[0]) : "l"(address));
  if constexpr (kBytes == 8) asm("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.w[0]), "=r"(x.w[1]) : "l"(address));
  if constexpr (kBytes == 16) {
    asm("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3]) : "l"(address));
  }
  return x;
}

template <int kBytes>
HVD_KERNEL_INLINE void store_aligned(uint64_t address, const Words<(kBytes + 3) / 4>& x) {
  if constexpr (kBytes == 1) asm volatile("st.global.u8 [%1], %0;" ::"r"(x.w[0]), "l"(address));
  if constexpr (kBytes == 2) asm volatile("st.global.u16 [%1], %0;" ::"r"(x.w[0]), "l"(address));
  if constexpr (kBytes == 4) asm volatile("st.global.u32 [%1], %0;" ::"r"(x.w[0]), "l"(address));
  if constexpr (kBytes == 8) asm volatile("st.global.v2.u32 [%2], {%0, %1};" ::"r"(x.w[0]), "r"(x.w[1]), "l"(address));
  if constexpr (kBytes == 16) {
    asm volatile("st.global.v4.u32 [%4], {%0, %1, %2, %3};" ::"r"(x.w[0]), "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3]), "l"(address));
  }
}

// Define a kernel with a single parameter. Without __grid_constant__, each thread would copy a table of 16 KiB in order to index it. At
// least two blocks fit on a multiprocessor, so a thread has up to 128 registers. in_bytes and out_bytes, the element sizes, are used only
// on the host.
#define HVD_KERNEL(name, Parameters, in_bytes, out_bytes, ...)                                    \
  extern "C" __global__ void __launch_bounds__(hvd::kernels::kThreads, 2)                         \
      name(const __grid_constant__ hvd::kernels::Parameters parameters) {                         \
    __VA_ARGS__(parameters, hvd::kernels::Place{blockIdx.x, gridDim.x, threadIdx.x, blockDim.x}); \
  }

#else

// On the host, trap if the address is misaligned, which a device would report.
template <int kBytes>
inline Words<(kBytes + 3) / 4> load_aligned(uint64_t address) {
  if (address % kBytes != 0) __builtin_trap();
  Words<(kBytes + 3) / 4> x{};
  __builtin_memcpy(&x, reinterpret_cast<const void*>(address), kBytes);
  return x;
}

template <int kBytes>
inline void store_aligned(uint64_t address, const Words<(kBytes + 3) / 4>& x) {
  if (address % kBytes != 0) __builtin_trap();
  __builtin_memcpy(reinterpret_cast<void*>(address), &x, kBytes);
}

// On the host, the test that includes kernels.cu defines HVD_KERNEL.
#endif

// ---- Unaligned access to one element. A caller's tensor can start at any address ------------------------------------

template <int kBytes>
HVD_KERNEL_INLINE Words<(kBytes + 3) / 4> words_of(uint64_t bits) {
  if constexpr (kBytes == 8) {
    return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
  } else {
    return {static_cast<uint32_t>(bits)};
  }
}
HVD_KERNEL_INLINE uint64_t bits_of(const Words<1>& x) { return x.w[0]; }
HVD_KERNEL_INLINE uint64_t bits_of(const Words<2>& x) { return static_cast<uint64_t>(x.w[1]) << 32 | x.w[0]; }

template <int kBytes>
HVD_KERNEL_INLINE Words<(kBytes + 3) / 4> load(uint64_t address) {
  if constexpr (kBytes > 1) {
    if (address % kBytes != 0) {
      uint64_t bits = 0;
      HVD_KERNEL_ROLL
      for (int i = 0; i < kBytes; ++i) bits |= static_cast<uint64_t>(load_aligned<1>(address + i).w[0]) << (8 * i);
      return words_of<kBytes>(bits);
    }
  }
  return load_aligned<kBytes>(address);
}

template <int kBytes>
HVD_KERNEL_INLINE void store(uint64_t address, const Words<(kBytes + 3) / 4>& x) {
  if constexpr (kBytes > 1) {
    if (address % kBytes != 0) {
      const uint64_t bits = bits_of(x);
      HVD_KERNEL_ROLL
      for (int i = 0; i < kBytes; ++i) store_aligned<1>(address + i, {static_cast<uint32_t>(bits >> (8 * i)) & 0xff});
      return;
    }
  }
  store_aligned<kBytes>(address, x);
}

}  // namespace hvd::kernels
