// Selection of the kernels for this CPU, and reductions in the canonical order (reduce.h). Kernels combine up to four
// sources.
//
// Floats are multiplied by factor / divisor, computed in double and rounded once to the accumulation type. If the divisor is a power of
// two, this equals x * factor / divisor; if not, it is within one unit in the last place. In a memory-bound loop, a multiplication is free
// but a division is not. Integers are scaled as x * factor / divisor in double, truncated towards zero and clamped to the type's range. A
// bool is unchanged unless the factor is zero.
#include "collectives/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "collectives/kernels.h"

namespace hvd {
namespace {

// Size in bytes of the accumulator of one block, a few of which fit in the L1 cache.
constexpr size_t kBlockBytes = 4096;

// Minimum size in bytes of copies that do not use memcpy. On AMD Zen 3 with glibc 2.36, an allreduce of 64 KiB took 30 us with memcpy and 8
// us with a plain vector loop. memcpy (presumably `rep movsb`) is slow if the destination is a few bytes below the source modulo a page,
// which is usual here: staging areas are page-aligned, and large tensors start 16 or 64 bytes after a page boundary.
constexpr size_t kCopyFrom = 2048;
// Minimum size in bytes for which stage_bytes() bypasses the cache.
constexpr size_t kStageFrom = 1024;

const Kernels* find_kernels(std::string_view name) {
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  // Read the CPUID bit of F16C directly: clang before version 16 does not accept the name "f16c". The check for "avx2" ensures that the
  // operating system saves the registers.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  const bool avx2 = __builtin_cpu_supports("avx2") && f16c;
  if (avx512 && (name.empty() || name == "avx512")) return kernels_avx512();
  if (avx2 && (name.empty() || name == "avx2")) return kernels_avx2();
#endif
  return name.empty() || name == "plain" ? kernels_plain() : nullptr;
}

// Kernels in use. All engines of the process share them, because they depend only on the CPU. The pointer is atomic,
// because tests change it.
std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> kernels{find_kernels("")};
  return kernels;
}
const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

int half_index(DType d) { return d == DType::bfloat16 ? 1 : 0; }

template <class T>
void scale_integers(std::byte* dst, const std::byte* src, size_t n, const Scale& scale) {
  const double factor = scale.factor, divisor = static_cast<double>(scale.divisor);
  constexpr double kLow = static_cast<double>(std::numeric_limits<T>::min());
  // Upper limit of the integer type as a double. For int64, it is rounded up to 2^63, the first value that does not
  // fit.
  constexpr double kHigh = static_cast<double>(std::numeric_limits<T>::max());
  for (size_t i = 0; i < n; ++i) {
    T x;
    memcpy(&x, src + i * sizeof(T), sizeof(T));
    const double y = static_cast<double>(x) * factor / divisor;
    if (y >= kHigh) {
      x = std::numeric_limits<T>::max();
    } else if (y <= kLow) {
      x = std::numeric_limits<T>::min();
    } else {
      x = std::isnan(y) ? T{0} : static_cast<T>(y);
    }
    memcpy(dst + i * sizeof(T), &x, sizeof(T));
  }
}

void scale_bools(std::byte* dst, const std::byte* src, size_t n, const Scale& scale) {
  const bool keep = scale.factor != 0;
  for (size_t i = 0; i < n; ++i) dst[i] = std::byte{keep && src[i] != std::byte{0}};
}

double multiplier(const Scale& scale) { return scale.factor / static_cast<double>(scale.divisor); }

// Groups of sources that the first step of the canonical order (reduce.h) adds, so that a power of two of values (`count`) is left. Value i
// is the sum of the sources [start(i), start(i + 1)).
struct Plan {
  size_t count, pairs;
  explicit Plan(size_t sources) : count(std::bit_floor(sources)), pairs(sources - count) {}
  size_t start(size_t partial) const { return partial < pairs ? 2 * partial : partial + pairs; }
};

// Reduction of one block of elements, by recursion over the tree of sources (see reduce.h). Each leaf is one kernel call on two to four
// sources.
struct Block {
  const Kernels& k;
  DType dtype;
  int op;
  std::span<const std::byte* const> sources;
  Plan plan;
  // Index of the block's first element, and the block's number of elements.
  size_t at = 0, n = 0;

  void leaf(std::byte* dst, size_t first, size_t count) const {
    const std::byte* s[kFusedSources];
    for (size_t i = 0; i < count; ++i) s[i] = sources[first + i] + at * size_of(dtype);
    auto& rows = is_half(dtype) ? k.widen[half_index(dtype)] : k.reduce[static_cast<int>(dtype)];
    rows[op][count - 1](dst, s, n, 1.0);
  }
  // Reduce a subtree into `dst`, in the accumulation type, and multiply by `factor`.
  void tree(std::byte* dst, size_t first, size_t count, double factor) const {
    const size_t begin = plan.start(first), end = plan.start(first + count);
    if (end - begin <= kFusedSources) return leaf(dst, begin, end - begin);
    alignas(64) std::byte left[kBlockBytes], right[kBlockBytes];
    tree(left, first, count / 2, 1.0);
    tree(right, first + count / 2, count / 2, 1.0);
    const std::byte* both[2] = {left, right};
    k.reduce[static_cast<int>(accumulator(dtype))][op][1](dst, both, n, factor);
  }
};

}  // namespace

std::string_view isa() { return kernels().name; }

bool force_isa(std::string_view name) {
  const Kernels* k = name.empty() ? nullptr : find_kernels(name);
  if (k) chosen().store(k, std::memory_order_relaxed);
  return k != nullptr;
}

void reduce2(DType d, ReduceOp op, std::byte* dst, const std::byte* a, const std::byte* b, size_t n) {
  const std::byte* sources[2] = {a, b};
  kernels().reduce[static_cast<int>(d)][op_index(op)][1](dst, sources, n, 1.0);
}

void scale(DType d, std::byte* dst, const std::byte* src, size_t n, const Scale& scale) {
  if (scale.identity()) {
    if (dst != src && n > 0) memmove(dst, src, n * size_of(d));
    return;
  }
  switch (d) {
    case DType::uint8: return scale_integers<uint8_t>(dst, src, n, scale);
    case DType::int8: return scale_integers<int8_t>(dst, src, n, scale);
    case DType::uint16: return scale_integers<uint16_t>(dst, src, n, scale);
    case DType::int16: return scale_integers<int16_t>(dst, src, n, scale);
    case DType::int32: return scale_integers<int32_t>(dst, src, n, scale);
    case DType::int64: return scale_integers<int64_t>(dst, src, n, scale);
    case DType::boolean: return scale_bools(dst, src, n, scale);
    default: return kernels().reduce[static_cast<int>(d)][0][0](dst, &src, n, multiplier(scale));
  }
}

void widen(DType half, float* dst, const std::byte* src, size_t n) {
  kernels().widen[half_index(half)][0][0](reinterpret_cast<std::byte*>(dst), &src, n, 1.0);
}

void narrow(DType half, std::byte* dst, const float* src, size_t n) {
  const auto* bytes = reinterpret_cast<const std::byte*>(src);
  kernels().narrow[half_index(half)](dst, &bytes, n, 1.0);
}

uint32_t magnitude(const float* x, size_t n) { return kernels().magnitude(x, n); }
void quantize(int8_t* q, const float* x, size_t n, float inverse) { kernels().quantize(q, x, n, inverse); }
void dequantize(float* x, const int8_t* q, size_t n, float scale) { kernels().dequantize(x, q, n, scale); }

void dots(DType d, const std::byte* a, const std::byte* b, size_t n, double unit_a, double unit_b, double* sums) {
  kernels().dots[d == DType::float64](a, b, n, unit_a, unit_b, sums);
}
void blend(DType d, std::byte* dst, const std::byte* a, const std::byte* b, size_t n, const double* units, const double* factors) {
  kernels().blend[d == DType::float64](dst, a, b, n, units, factors);
}
double largest(const double* x, size_t n) { return kernels().largest(x, n); }

void reduce_many(DType d, ReduceOp op, std::byte* dst, std::span<const std::byte* const> sources, size_t n, const Scale& s,
                 bool streaming) {
  if (n == 0 || sources.empty()) return;
  const Kernels& k = kernels();
  const size_t element = size_of(d);
  const double factor = is_float(d) ? multiplier(s) : 1.0;
  const bool scale_after = !is_float(d) && !s.identity();
  const bool fused = sources.size() <= kFusedSources;
  const auto& direct = k.reduce[static_cast<int>(d)][op_index(op)];
  streaming = streaming && n * element >= 2 * kBlockBytes;

  if (sources.size() == 1 && !streaming) return scale(d, dst, sources[0], n, s);
  if (fused && !scale_after && !streaming) return direct[sources.size() - 1](dst, sources.data(), n, factor);

  Block block{k, d, op_index(op), sources, Plan(sources.size())};
  const size_t step = kBlockBytes / size_of(accumulator(d));
  for (block.at = 0; block.at < n; block.at += step) {
    block.n = std::min(step, n - block.at);
    // Use separate memory if the result must still be converted or streamed to `dst`, which can be one of the sources.
    alignas(64) std::byte result[kBlockBytes], wide[kBlockBytes];
    std::byte* target = dst + block.at * element;
    std::byte* out = streaming ? result : target;
    if (fused) {
      const std::byte* shifted[kFusedSources];
      for (size_t i = 0; i < sources.size(); ++i) shifted[i] = sources[i] + block.at * element;
      direct[sources.size() - 1](out, shifted, block.n, factor);
    } else if (is_half(d)) {
      block.tree(wide, 0, block.plan.count, 1.0);
      const std::byte* source = wide;
      k.narrow[half_index(d)](out, &source, block.n, factor);
    } else {
      block.tree(out, 0, block.plan.count, factor);
    }
    if (scale_after) scale(d, out, out, block.n, s);
    if (streaming) k.stream(target, result, block.n * element);
  }
  if (streaming) stream_fence();
}

void copy_bytes(std::byte* dst, const std::byte* src, size_t bytes, bool streaming) {
  if (bytes == 0) return;
  if (bytes < kCopyFrom) {
    memcpy(dst, src, bytes);
  } else if (!streaming || bytes < 2 * kBlockBytes) {
    kernels().copy(dst, src, bytes);
  } else {
    kernels().stream(dst, src, bytes);
    stream_fence();
  }
}

void stage_bytes(std::byte* dst, const std::byte* src, size_t bytes) {
  if (bytes < kStageFrom) {
    memcpy(dst, src, bytes);
  } else {
    kernels().stream(dst, src, bytes);
  }
}

}  // namespace hvd
