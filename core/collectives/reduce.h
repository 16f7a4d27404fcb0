// Arithmetic on arrays. No other code interprets elements. An implementation for this CPU is selected once at run time: plain (NEON on
// AArch64), AVX2 or AVX-512. All give bitwise identical results, so a job can mix different CPUs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "collectives/comm.h"

namespace hvd {

// Return the type in which values of `d` are accumulated: float32 for float16 and bfloat16, and `d` for all other
// types.
constexpr DType accumulator(DType d) { return is_half(d) ? DType::float32 : d; }

// Compute dst[i] = a[i] op b[i] for i < n, all of dtype d. `a` is the operand of the lower rank, and dst can be a or b.
// `op` is sum, min, max or product. 16-bit floats are computed in float32 and rounded once. Integer sums wrap, and min
// and max propagate NaN. For bool, min and product mean logical and; max and sum mean logical or.
void reduce2(DType d, ReduceOp op, std::byte* dst, const std::byte* a, const std::byte* b, size_t n);

// Compute dst = x * scale.factor / scale.divisor elementwise. dst can be src.
void scale(DType d, std::byte* dst, const std::byte* src, size_t n, const Scale& scale);

// Convert between a 16-bit float and float32. Narrowing rounds to nearest, ties to even.
void widen(DType half, float* dst, const std::byte* src, size_t n);
void narrow(DType half, std::byte* dst, const float* src, size_t n);

// Kernels for blocks of int8 (codec.h), documented in kernels.h.
uint32_t magnitude(const float* x, size_t n);
void quantize(int8_t* q, const float* x, size_t n, float inverse);
void dequantize(float* x, const int8_t* q, size_t n, float scale);

// Kernels for Adasum (allreduce_adasum.cc), documented in kernels.h. `d` is float32 or float64.
void dots(DType d, const std::byte* a, const std::byte* b, size_t n, double unit_a, double unit_b, double* sums);
void blend(DType d, std::byte* dst, const std::byte* a, const std::byte* b, size_t n, const double* units, const double* factors);
double largest(const double* x, size_t n);

// Reduce sources[0..n) to dst in the canonical order (see below), then scale. 16-bit floats stay in float32 until the
// end. dst can be one of the sources. The data are processed in cache-sized blocks. `streaming` requests stores that
// bypass the cache.
void reduce_many(DType d, ReduceOp op, std::byte* dst, std::span<const std::byte* const> sources, size_t n, const Scale& scale,
                 bool streaming = false);

// Copy memory without overlap. `streaming` requests stores that bypass the cache, for outputs that will not be read soon.
void copy_bytes(std::byte* dst, const std::byte* src, size_t bytes, bool streaming);
// Copy with stores that bypass the cache. The caller must call stream_fence() before it publishes the data.
void stage_bytes(std::byte* dst, const std::byte* src, size_t bytes);

// Canonical order. The order of additions must not depend on the algorithm, fusion or timing, because bits would then
// differ between runs. Let p be the largest power of two <= n and r = n - p. First, ranks 2i and 2i+1 combine for i <
// r, which leaves p partial values in rank order. Then neighbours combine pairwise, which leaves p/2 values, then p/4,
// and so on. Recursive doubling and Rabenseifner's algorithm follow this order by design; direct algorithms follow it
// through reduce_many.

// isa() returns the name of the implementation in use, for example "avx2". force_isa() selects an implementation for
// tests; it returns false if this CPU cannot run the implementation.
std::string_view isa();
bool force_isa(std::string_view name);

}  // namespace hvd
