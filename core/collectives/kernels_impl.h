// Kernel implementations. Each kernels_<isa>.cc includes this file once, after defining HVD_KERNEL_WIDTH (bytes of a
// vector register), HVD_KERNEL_NAME (the name that isa() returns) and, if the CPU converts float16, HVD_KERNEL_F16C.
// The kernels use the compiler's vector types, which GCC and Clang map to the target. One source then serves SSE2,
// AVX2, AVX-512 and NEON without relying on the auto-vectoriser.
//
// Everything is in an unnamed namespace, and memcpy is the only library function used. An inline function with external
// linkage would be compiled here with AVX instructions, and the linker might then use that copy in the whole program.
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "collectives/kernels.h"

namespace hvd {
namespace {

constexpr size_t kWidth = HVD_KERNEL_WIDTH;

#define HVD_INLINE [[gnu::always_inline]] inline

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kWidth)));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class V>
HVD_INLINE V load_bytes(const std::byte* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

template <class To, class From>
HVD_INLINE To same_bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &v, sizeof to);
  return to;
}

// ---- Loading elements into vectors of the accumulation type, and storing them ---------------------------------------

template <class T>
struct Native {
  using Acc = T;
  using Vec = Vector<T>;
  static constexpr size_t kBytes = sizeof(T);
  HVD_INLINE static Vec load(const std::byte* p) { return load_bytes<Vec>(p); }
  HVD_INLINE static void store(std::byte* p, Vec v) { memcpy(p, &v, sizeof v); }
};

struct Bool : Native<uint8_t> {};

// Vector of 16-bit values with as many lanes as a FloatVec.
[[maybe_unused]] typedef uint16_t HalfVec __attribute__((vector_size(kWidth / 2)));
using FloatVec = Vector<float>;
using WordVec = Vector<uint32_t>;
using IntVec = Vector<int32_t>;

// Return a mask with all bits set in the lanes where a > b. Both must be below 2^31, because SSE2 and AVX2 compare only signed words.
HVD_INLINE WordVec greater(WordVec a, uint32_t b) { return same_bits<WordVec>(same_bits<IntVec>(a) > static_cast<int32_t>(b)); }

// Convert between 16-bit values in memory and 32-bit words. On x86, use intrinsics: GCC splits __builtin_convertvector into single
// elements.
#if defined(__x86_64__) && HVD_KERNEL_WIDTH == 64
HVD_INLINE WordVec load_halves(const std::byte* p) {
  return same_bits<WordVec>(_mm512_maskz_cvtepu16_epi32(0xffff, load_bytes<__m256i>(p)));
}
HVD_INLINE void store_halves(std::byte* p, WordVec v) {
  const __m256i h = _mm512_maskz_cvtepi32_epi16(0xffff, same_bits<__m512i>(v));
  memcpy(p, &h, sizeof h);
}
#elif defined(__x86_64__) && HVD_KERNEL_WIDTH == 32
HVD_INLINE WordVec load_halves(const std::byte* p) { return same_bits<WordVec>(_mm256_cvtepu16_epi32(load_bytes<__m128i>(p))); }
HVD_INLINE void store_halves(std::byte* p, WordVec v) {
  const __m256i w = same_bits<__m256i>(v);
  const __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
  memcpy(p, &h, sizeof h);
}
#elif defined(__x86_64__)
HVD_INLINE WordVec load_halves(const std::byte* p) {
  return same_bits<WordVec>(_mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), _mm_setzero_si128()));
}
HVD_INLINE void store_halves(std::byte* p, WordVec v) {
  // Convert to signed words first, because SSE2 can only pack signed words.
  const __m128i extended = _mm_srai_epi32(_mm_slli_epi32(same_bits<__m128i>(v), 16), 16);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(extended, extended));
}
#else
HVD_INLINE WordVec load_halves(const std::byte* p) { return __builtin_convertvector(load_bytes<HalfVec>(p), WordVec); }
HVD_INLINE void store_halves(std::byte* p, WordVec v) {
  const HalfVec h = __builtin_convertvector(v, HalfVec);
  memcpy(p, &h, sizeof h);
}
#endif

struct Float16 {
  using Acc = float;
  using Vec = FloatVec;
  static constexpr size_t kBytes = 2;

#if defined(HVD_KERNEL_F16C) && HVD_KERNEL_WIDTH == 64
  // Use the masked intrinsics with a zero source. In GCC 12, the plain ones read an undefined register and cause a warning.
  HVD_INLINE static Vec load(const std::byte* p) { return same_bits<Vec>(_mm512_maskz_cvtph_ps(0xffff, load_bytes<__m256i>(p))); }
  HVD_INLINE static void store(std::byte* p, Vec v) {
    const __m256i h = _mm512_maskz_cvtps_ph(0xffff, same_bits<__m512>(v), _MM_FROUND_TO_NEAREST_INT);
    memcpy(p, &h, sizeof h);
  }
#elif defined(HVD_KERNEL_F16C)
  HVD_INLINE static Vec load(const std::byte* p) { return same_bits<Vec>(_mm256_cvtph_ps(load_bytes<__m128i>(p))); }
  HVD_INLINE static void store(std::byte* p, Vec v) {
    const __m128i h = _mm256_cvtps_ph(same_bits<__m256>(v), _MM_FROUND_TO_NEAREST_INT);
    memcpy(p, &h, sizeof h);
  }
#else
  // Convert without branches: compute all cases of base/half.h and select the right one.
  HVD_INLINE static Vec load(const std::byte* p) {
    const WordVec h = load_halves(p);
    const WordVec magnitude = h & 0x7fff;
    const WordVec tiny = same_bits<WordVec>(__builtin_convertvector(same_bits<IntVec>(magnitude), FloatVec) * 0x1p-24f);
    WordVec bits = (magnitude << 13) + (112u << 23);
    bits += greater(magnitude, 0x7bff) & (112u << 23);
    bits |= greater(magnitude, 0x7c00) & 0x00400000u;
    const WordVec is_tiny = ~greater(magnitude, 0x03ff);
    return same_bits<Vec>(((h & 0x8000) << 16) | (tiny & is_tiny) | (bits & ~is_tiny));
  }
  HVD_INLINE static void store(std::byte* p, Vec v) {
    const WordVec bits = same_bits<WordVec>(v);
    const WordVec magnitude = bits & 0x7fffffff;
    const WordVec tiny = same_bits<WordVec>(same_bits<Vec>(magnitude) + 0.5f) - 0x3f000000;
    const WordVec normal = (magnitude - (112u << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
    const WordVec nan = 0x7e00 | ((magnitude >> 13) & 0x03ff);
    const WordVec is_tiny = ~greater(magnitude, 0x387fffff);
    const WordVec is_large = greater(magnitude, 0x477fffff);
    const WordVec is_nan = same_bits<WordVec>(v != v);
    const WordVec h = (tiny & is_tiny) | (normal & ~is_tiny & ~is_large) | (0x7c00 & is_large & ~is_nan) | (nan & is_nan);
    store_halves(p, ((bits >> 16) & 0x8000) | h);
  }
#endif
};

struct BFloat16 {
  using Acc = float;
  using Vec = FloatVec;
  static constexpr size_t kBytes = 2;
  HVD_INLINE static Vec load(const std::byte* p) { return same_bits<Vec>(load_halves(p) << 16); }
  HVD_INLINE static void store(std::byte* p, Vec v) {
    const WordVec bits = same_bits<WordVec>(v);
    const WordVec is_nan = same_bits<WordVec>(v != v);
    const WordVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const WordVec quiet = (bits >> 16) | 0x0040;
    store_halves(p, (quiet & is_nan) | (rounded & ~is_nan));
  }
};

// ---- Reduction operations; signed integers use their unsigned type, so that they wrap (see make_table) --------------

struct Sum {
  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    return a + b;
  }
};
struct Product {
  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    return a * b;
  }
};
// Return a if it is the smaller (Min) or larger (Max) operand or is NaN, and b otherwise, so that NaN propagates. For integers, the
// compiler removes `a != a`.
struct Min {
  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};
struct Max {
  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};
struct Or {
  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    return same_bits<V>((a | b) != 0) & 1;
  }
};
struct And {
  template <class V>
  HVD_INLINE static V apply(V a, V b) {
    return same_bits<V>((a != 0) & (b != 0)) & 1;
  }
};

template <class T>
constexpr bool kIsFloat = false;
template <>
constexpr bool kIsFloat<float> = true;
template <>
constexpr bool kIsFloat<double> = true;

// ---- The reduction loop ---------------------------------------------------------------------------------------------

template <class In, class Op, int K>
HVD_INLINE typename In::Vec combine(const std::byte* const (&s)[K], size_t at) {
  if constexpr (K == 1) {
    return In::load(s[0] + at);
  } else {
    auto v = Op::apply(In::load(s[0] + at), In::load(s[1] + at));
    if constexpr (K == 3) v = Op::apply(v, In::load(s[2] + at));
    if constexpr (K == 4) v = Op::apply(v, Op::apply(In::load(s[2] + at), In::load(s[3] + at)));
    return v;
  }
}

// Multiply a float result by the scale factor. Without scaling the factor is 1, which changes no bits and costs no time, because the loop
// is memory-bound.
template <class Acc, class V>
HVD_INLINE V scaled(V v, Acc factor) {
  if constexpr (kIsFloat<Acc>) {
    return v * factor;
  } else {
    return v;
  }
}

template <class In, class Out, class Op, int K>
void reduce_loop(std::byte* dst, const std::byte* const* sources, size_t n, double factor_in_double) {
  using Acc = typename In::Acc;
  constexpr size_t kLanes = kWidth / sizeof(Acc), kIn = kLanes * In::kBytes, kOut = kLanes * Out::kBytes;
  Acc factor{};
  if constexpr (kIsFloat<Acc>) factor = static_cast<Acc>(factor_in_double);
  const std::byte* s[K];
  for (int k = 0; k < K; ++k) s[k] = sources[k];

  size_t left = n, in = 0;
  for (; left >= 2 * kLanes; left -= 2 * kLanes, in += 2 * kIn, dst += 2 * kOut) {
    const auto first = combine<In, Op, K>(s, in), second = combine<In, Op, K>(s, in + kIn);
    Out::store(dst, scaled(first, factor));
    Out::store(dst + kOut, scaled(second, factor));
  }
  // Process the remaining elements on padded copies with the same vector code, so that a result does not depend on its position.
  while (left > 0) {
    const size_t some = left < kLanes ? left : kLanes;
    alignas(kWidth) std::byte padded[K][kWidth] = {};
    const std::byte* t[K];
    for (int k = 0; k < K; ++k) {
      memcpy(padded[k], s[k] + in, some * In::kBytes);
      t[k] = padded[k];
    }
    alignas(kWidth) std::byte result[kWidth];
    Out::store(result, scaled(combine<In, Op, K>(t, 0), factor));
    memcpy(dst, result, some * Out::kBytes);
    left -= some, in += kIn, dst += kOut;
  }
}

// Kernels for blocks of int8, as plain loops that compilers vectorise. The maximum is computed on integers, because floats would need
// special handling of NaN. Values are rounded by an addition that pushes the fraction out of the significand, which gives the same bits on
// every instruction set.
uint32_t magnitude_loop(const float* x, size_t n) {
  int32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t bits = same_bits<int32_t>(x[i]) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return static_cast<uint32_t>(most);
}

void quantize_loop(int8_t* __restrict q, const float* __restrict x, size_t n, float inverse) {
  for (size_t i = 0; i < n; ++i) {
    const float shifted = x[i] * inverse + 0x1.8p23f;
    q[i] = static_cast<int8_t>(same_bits<int32_t>(shifted) - 0x4b400000);
  }
}

void dequantize_loop(float* __restrict x, const int8_t* __restrict q, size_t n, float scale) {
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(q[i]) * scale;
}

void copy_loop(std::byte* dst, const std::byte* src, size_t bytes) {
  typedef long long Word __attribute__((vector_size(kWidth)));
  for (; bytes >= 4 * kWidth; dst += 4 * kWidth, src += 4 * kWidth, bytes -= 4 * kWidth) {
    const Word a = load_bytes<Word>(src), b = load_bytes<Word>(src + kWidth);
    const Word c = load_bytes<Word>(src + 2 * kWidth), d = load_bytes<Word>(src + 3 * kWidth);
    memcpy(dst, &a, kWidth);
    memcpy(dst + kWidth, &b, kWidth);
    memcpy(dst + 2 * kWidth, &c, kWidth);
    memcpy(dst + 3 * kWidth, &d, kWidth);
#if defined(__x86_64__)
    // Keep GCC from turning this loop into a call to memcpy.
    asm volatile("" ::: "memory");
#endif
  }
  memcpy(dst, src, bytes);
}

void stream_loop(std::byte* dst, const std::byte* src, size_t bytes) {
#if defined(__x86_64__)
  typedef long long Word __attribute__((vector_size(kWidth)));
  size_t head = -reinterpret_cast<uintptr_t>(dst) % kWidth;
  if (head > bytes) head = bytes;
  memcpy(dst, src, head);
  dst += head, src += head, bytes -= head;
  for (; bytes >= kWidth; dst += kWidth, src += kWidth, bytes -= kWidth) {
    const Word v = load_bytes<Word>(src);
#if HVD_KERNEL_WIDTH == 64
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), same_bits<__m512i>(v));
#elif HVD_KERNEL_WIDTH == 32
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), same_bits<__m256i>(v));
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst), same_bits<__m128i>(v));
#endif
  }
#endif
  memcpy(dst, src, bytes);
}

#include "collectives/kernels_adasum.h"

// ---- The table of kernels -------------------------------------------------------------------------------------------

template <class In, class Out, class Op>
constexpr void fill_op(Kernels::Reduce (&row)[kFusedSources]) {
  // With a single source there is nothing to combine, so all operations use the same loop.
  row[0] = reduce_loop<In, Out, Sum, 1>;
  row[1] = reduce_loop<In, Out, Op, 2>;
  row[2] = reduce_loop<In, Out, Op, 3>;
  row[3] = reduce_loop<In, Out, Op, 4>;
}

template <class In, class Out = In, class Ring = In, class RingOut = Out>
constexpr void fill(Kernels::Reduce (&rows)[kReduceOps][kFusedSources]) {
  fill_op<Ring, RingOut, Sum>(rows[0]);
  fill_op<In, Out, Min>(rows[1]);
  fill_op<In, Out, Max>(rows[2]);
  fill_op<Ring, RingOut, Product>(rows[3]);
}

template <class T, class U>
constexpr void fill_integer(Kernels::Reduce (&rows)[kReduceOps][kFusedSources]) {
  fill<Native<T>, Native<T>, Native<U>, Native<U>>(rows);
}

constexpr Kernels make_table() {
  Kernels t{};
  t.name = HVD_KERNEL_NAME;
  auto at = [&t](DType d) -> auto& { return t.reduce[static_cast<int>(d)]; };
  fill_integer<uint8_t, uint8_t>(at(DType::uint8));
  fill_integer<int8_t, uint8_t>(at(DType::int8));
  fill_integer<uint16_t, uint16_t>(at(DType::uint16));
  fill_integer<int16_t, uint16_t>(at(DType::int16));
  fill_integer<int32_t, uint32_t>(at(DType::int32));
  fill_integer<int64_t, uint64_t>(at(DType::int64));
  fill<Float16>(at(DType::float16));
  fill<BFloat16>(at(DType::bfloat16));
  fill<Native<float>>(at(DType::float32));
  fill<Native<double>>(at(DType::float64));
  auto& boolean = at(DType::boolean);
  fill_op<Bool, Bool, Or>(boolean[0]);
  fill_op<Bool, Bool, And>(boolean[1]);
  fill_op<Bool, Bool, Or>(boolean[2]);
  fill_op<Bool, Bool, And>(boolean[3]);
  fill<Float16, Native<float>>(t.widen[0]);
  fill<BFloat16, Native<float>>(t.widen[1]);
  t.narrow[0] = reduce_loop<Native<float>, Float16, Sum, 1>;
  t.narrow[1] = reduce_loop<Native<float>, BFloat16, Sum, 1>;
  t.magnitude = magnitude_loop;
  t.quantize = quantize_loop;
  t.dequantize = dequantize_loop;
  t.dots[0] = adasum_dots_loop<float>;
  t.dots[1] = adasum_dots_loop<double>;
  t.blend[0] = adasum_blend_loop<float>;
  t.blend[1] = adasum_blend_loop<double>;
  t.largest = adasum_largest_loop;
  t.copy = copy_loop;
  t.stream = stream_loop;
  return t;
}

constexpr Kernels kTable = make_table();

}  // namespace
}  // namespace hvd
