// Function table of the array kernels of one instruction set. Used only by collectives/reduce.cc, which picks a table
// at run time.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace hvd {

inline constexpr int kReduceOps = 4;    // sum, min, max, product, in this order
inline constexpr int kFusedSources = 4;  // a kernel takes 1 to 4 sources at once

struct Kernels {
  // dst[i] = f(sources[0][i], ..., sources[k - 1][i]) * factor. Integers and bool ignore `factor`. Sources are combined
  // in the canonical order (reduce.h), in the accumulation type. dst may be one of the sources; otherwise it must not
  // overlap them.
  using Reduce = void (*)(std::byte* dst, const std::byte* const* sources, size_t n, double factor);

  const char* name;
  Reduce reduce[kDTypeCount][kReduceOps][kFusedSources];  // index: [dtype][op][k - 1]
  // Variants for 16-bit floats (0: float16, 1: bfloat16) that leave the result in float32, and the conversion back.
  Reduce widen[2][kReduceOps][kFusedSources];
  Reduce narrow[2];
  // Blocks of int8 (codec.h). magnitude: the largest bit pattern of |x|. quantize: x * inverse rounded to integers,
  // ties to even (magnitudes must not exceed 127). dequantize: q * scale.
  uint32_t (*magnitude)(const float* x, size_t n);
  void (*quantize)(int8_t* q, const float* x, size_t n, float inverse);
  void (*dequantize)(float* x, const int8_t* q, size_t n, float scale);
  // Adasum (allreduce_adasum.cc) of float32 (0) and float64 (1), computed in double. Units are applied twice, because
  // the range from the smallest number to one does not fit a double.
  // dots: with a' = a * unit_a^2 and b' = b * unit_b^2, the sums of a'[i] * b'[i], a'[i]^2 and b'[i]^2.
  // blend: dst[i] = a[i] * units[0]^2 * factors[0] + b[i] * units[1]^2 * factors[1]; dst may be a or b.
  // largest: maximum of |x[i]|, ignoring NaN.
  void (*dots[2])(const std::byte* a, const std::byte* b, size_t n, double unit_a, double unit_b, double* sums);
  void (*blend[2])(std::byte* dst, const std::byte* a, const std::byte* b, size_t n, const double* units, const double* factors);
  double (*largest)(const double* x, size_t n);
  // Copy; copy_bytes explains why not with memcpy.
  void (*copy)(std::byte* dst, const std::byte* src, size_t bytes);
  // Copy with stores that bypass the cache, where the instruction set has them. The caller fences (stream_fence).
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

}  // namespace hvd
