// One thread's part of a vector, as 32-bit words that stay in registers. Narrow elements thus need up to four times fewer registers than
// with one register per element. Lanes are the elements in the words, from the low bits up, as in memory.
//
// kernels.cu uses this file both on a device (NVRTC) and on the host (tests), so std::bit_cast is the only function of
// the standard library that it may use.
#pragma once
#include <bit>
#include <cstdint>

#if defined(__CUDACC__)
#define HVD_KERNEL_INLINE __device__ __forceinline__
#define HVD_KERNEL_UNROLL _Pragma("unroll")
// Keep loops rolled if unrolling does not make them faster. The driver compiles the code when kernels are first loaded, so it should be
// short.
#define HVD_KERNEL_ROLL _Pragma("unroll 1")
#else
#define HVD_KERNEL_INLINE inline
#define HVD_KERNEL_UNROLL
#define HVD_KERNEL_ROLL
#endif

namespace hvd::kernels {

template <int N>
struct Words {
  uint32_t w[N];
};

template <class T, int N>
HVD_KERNEL_INLINE T lane(const Words<N>& x, int i) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(static_cast<uint64_t>(x.w[2 * i + 1]) << 32 | x.w[2 * i]);
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(x.w[i]);
  } else {
    constexpr int kEach = 4 / sizeof(T), kBits = 8 * sizeof(T);
    return static_cast<T>(x.w[i / kEach] >> (i % kEach * kBits));
  }
}

// Store a value in lane i of x. The lane must still be zero, so set each lane at most once.
template <class T, int N>
HVD_KERNEL_INLINE void set_lane(Words<N>& x, int i, T value) {
  if constexpr (sizeof(T) == 8) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    x.w[2 * i] = static_cast<uint32_t>(bits);
    x.w[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
  } else if constexpr (sizeof(T) == 4) {
    x.w[i] = std::bit_cast<uint32_t>(value);
  } else {
    constexpr int kEach = 4 / sizeof(T), kBits = 8 * sizeof(T);
    const uint32_t bits = static_cast<uint32_t>(value) & ((1u << kBits) - 1);
    x.w[i / kEach] |= bits << (i % kEach * kBits);
  }
}

}  // namespace hvd::kernels
