// Table of the array kernels for one instruction set. collectives/reduce.cc selects a table at run time.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace hvd {

// Number of reductions that have kernels. They are sum, min, max and product, in this order.
inline constexpr int kReduceOps = 4;
constexpr int op_index(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return 1;
    case ReduceOp::max: return 2;
    case ReduceOp::product: return 3;
    default: return 0;
  }
}
// Maximum number of sources that a kernel combines in one pass.
inline constexpr int kFusedSources = 4;

struct Kernels {
  // Kernel that combines k sources: dst[i] = f(sources[0][i], ..., sources[k - 1][i]) * factor. Integers and bool ignore `factor`. Values
  // are combined in the canonical order (reduce.h) and in the accumulation type. dst can be one of the sources, but must not partly overlap
  // a source.
  using Reduce = void (*)(std::byte* dst, const std::byte* const* sources, size_t n, double factor);

  const char* name;
  // Reduction kernels, indexed by [dtype][op][k - 1] for k sources.
  Reduce reduce[kDTypeCount][kReduceOps][kFusedSources];
  // Kernels that reduce 16-bit floats (0: float16, 1: bfloat16) to a float32 result, and kernels that convert float32
  // back to 16 bits.
  Reduce widen[2][kReduceOps][kFusedSources];
  Reduce narrow[2];
  // Kernels for blocks of int8 (codec.h). magnitude() returns the largest bit pattern of |x|. quantize() computes x *
  // inverse, rounded to integers with ties to even; magnitudes must not exceed 127. dequantize() computes q * scale.
  uint32_t (*magnitude)(const float* x, size_t n);
  void (*quantize)(int8_t* q, const float* x, size_t n, float inverse);
  void (*dequantize)(float* x, const int8_t* q, size_t n, float scale);
  // Adasum kernels (allreduce_adasum.cc) for float32 (index 0) and float64 (index 1), computed in double. A value is multiplied twice by a
  // unit, because the unit's square can exceed a double. dots() computes the sums of a' * b', a'^2 and b'^2, where a' = a * unit_a^2 and b'
  // = b * unit_b^2. blend() computes dst = a * units[0]^2 * factors[0] + b * units[1]^2 * factors[1]; dst can be a or b. largest() returns
  // the maximum of |x[i]|, ignoring NaN.
  void (*dots[2])(const std::byte* a, const std::byte* b, size_t n, double unit_a, double unit_b, double* sums);
  void (*blend[2])(std::byte* dst, const std::byte* a, const std::byte* b, size_t n, const double* units, const double* factors);
  double (*largest)(const double* x, size_t n);
  // Copy bytes without memcpy. For the reason, see kCopyFrom (reduce.cc).
  void (*copy)(std::byte* dst, const std::byte* src, size_t bytes);
  // Copy with stores that bypass the cache, if the instruction set has them. The caller must call stream_fence()
  // afterwards.
  void (*stream)(std::byte* dst, const std::byte* src, size_t bytes);
};

const Kernels* kernels_plain();
#if defined(__x86_64__)
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
#endif

inline void stream_fence() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}
// Wait until earlier stores have left the core, to measure them.
inline void drain_stores() {
#if defined(__x86_64__)
  __builtin_ia32_mfence();
#endif
}

}  // namespace hvd
