// Arithmetic on arrays: the only place that knows what an element is. The implementation for this CPU (plain, AVX2, AVX-512; on
// AArch64 plain is NEON) is chosen once at run time; all give the same bits, so hosts of different kinds may work together.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "collectives/comm.h"

namespace hvd {

// The type in which values of `d` are accumulated: float32 for float16 and bfloat16, else d itself.
constexpr DType accumulator(DType d) { return is_half(d) ? DType::float32 : d; }

// dst[i] = a[i] op b[i] for i < n, all of dtype d. For 16-bit floats each result is computed in float32 and rounded once.
// dst may be a or b; a is the operand of the lower rank. Sums of integers wrap; min and max propagate NaN;
// bool: min and product are logical and, max and sum logical or. op: sum, min, max or product.
void reduce2(DType d, ReduceOp op, std::byte* dst, const std::byte* a, const std::byte* b, size_t n);

// dst = x * scale.factor / scale.divisor elementwise; dst may be src.
void scale(DType d, std::byte* dst, const std::byte* src, size_t n, const Scale& scale);

// Between a 16-bit float and float32; narrowing rounds to nearest, ties to even.
void widen(DType half, float* dst, const std::byte* src, size_t n);
void narrow(DType half, std::byte* dst, const float* src, size_t n);

// For blocks of int8 (codec.h): see the functions of these names in kernels.h.
uint32_t magnitude(const float* x, size_t n);
void quantize(int8_t* q, const float* x, size_t n, float inverse);
void dequantize(float* x, const int8_t* q, size_t n, float scale);

// For Adasum (allreduce_adasum.cc); d: float32 or float64. See the functions of these names in kernels.h.
void dots(DType d, const std::byte* a, const std::byte* b, size_t n, double unit_a, double unit_b, double* sums);
void blend(DType d, std::byte* dst, const std::byte* a, const std::byte* b, size_t n, const double* units, const double* factors);
double largest(const double* x, size_t n);

// dst = reduction of sources[0..n) in THE order of this project (see below), then scaled; 16-bit floats stay in float32 until the
// end. dst may be one of the sources. Works in cache-sized blocks; `streaming` asks for stores that bypass the cache.
void reduce_many(DType d, ReduceOp op, std::byte* dst, std::span<const std::byte* const> sources, size_t n, const Scale& scale,
                 bool streaming = false);

// memcpy for the staging of large data, on request with stores that bypass the cache (for outputs that nobody reads soon). The two must not
// overlap.
void copy_bytes(std::byte* dst, const std::byte* src, size_t bytes, bool streaming);

// THE order: which values are added first must not depend on the algorithm, on how tensors were fused, or on timing, or bits would
// differ between runs. Let p be the largest power of two <= n and r = n - p. First ranks 2i and 2i+1 combine for i < r; that leaves
// p partial values in rank order. Then neighbours combine, p/2 times, p/4 times, ... That is what recursive doubling and
// distance-doubling halving-doubling do by nature; direct algorithms follow it through reduce_many.

// Name of the implementation in use ("avx2", ...), and forcing one (tests; returns false when this CPU cannot run it).
std::string_view isa();
bool force_isa(std::string_view name);

}  // namespace hvd
