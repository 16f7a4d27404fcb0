// Element types, one struct each, named as in base/dtype_table.h. A struct defines the size, the accumulation type, the
// operations and the scaling. Results are bitwise identical to those of collectives/kernels_impl.h and of scale() in
// collectives/reduce.cc.
#pragma once
#include <cstdint>

#include "base/half.h"
#include "kernels/parameters.h"
#include "kernels/words.h"

namespace hvd::kernels {

template <class T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;

// ---- Operations on two values, where a is the operand of the lower rank ---------------------------------------------

// Operations on numbers. Integers are computed as unsigned numbers, so that they wrap instead of overflowing; the conversion back to T
// drops the upper bits.
template <class T>
struct Number {
  HVD_KERNEL_INLINE static T sum(T a, T b) {
    if constexpr (kIsFloat<T>) {
      return a + b;
    } else {
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    }
  }
  HVD_KERNEL_INLINE static T product(T a, T b) {
    if constexpr (kIsFloat<T>) {
      return a * b;
    } else {
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    }
  }
  // Return a if it is the smaller (min) or larger (max) operand or is NaN, and b otherwise. If either operand is NaN,
  // so is the result.
  HVD_KERNEL_INLINE static T min(T a, T b) { return (a < b) | (a != a) ? a : b; }
  HVD_KERNEL_INLINE static T max(T a, T b) { return (a > b) | (a != a) ? a : b; }
};

// Convert each of the four bytes in a word to a bool (0 or 1).
HVD_KERNEL_INLINE uint32_t truths(uint32_t x) { return ((((x & 0x7f7f7f7f) + 0x7f7f7f7f) | x) >> 7) & 0x01010101; }

// ---- Scaling of values ----------------------------------------------------------------------------------------------

template <class T>
HVD_KERNEL_INLINE T scale_float(T x, const Scaling& s) {
  return x * static_cast<T>(s.multiplier);
}

template <class T>
HVD_KERNEL_INLINE T scale_integer(T x, const Scaling& s) {
  if (s.identity) return x;
  constexpr bool kSigned = static_cast<T>(-1) < static_cast<T>(0);
  constexpr int kBits = 8 * sizeof(T) - (kSigned ? 1 : 0);
  constexpr T kMost = static_cast<T>(~uint64_t{0} >> (64 - kBits)), kLeast = kSigned ? static_cast<T>(~kMost) : T{0};
  // Limits of the integer type as doubles. The upper limit of int64 is rounded up to 2^63, the first value that does not fit.
  constexpr double kHigh = static_cast<double>(kMost), kLow = static_cast<double>(kLeast);
  const double y = static_cast<double>(x) * s.factor / s.divisor;
  if (y >= kHigh) return kMost;
  if (y <= kLow) return kLeast;
  return y != y ? T{0} : static_cast<T>(y);
}

HVD_KERNEL_INLINE uint8_t scale_truth(uint8_t x, const Scaling& s) {
  return s.identity ? x : static_cast<uint8_t>((s.factor != 0) & (x != 0));
}

// ---- Element types --------------------------------------------------------------------------------------------------

namespace element {

template <class T>
struct Plain {
  // Type of an element in memory.
  using Value = T;
  // Type of an element during accumulation.
  using Acc = T;
  HVD_KERNEL_INLINE static T widen(T x) { return x; }
  HVD_KERNEL_INLINE static T narrow(T x) { return x; }
  HVD_KERNEL_INLINE static T scale(T x, const Scaling& s) {
    if constexpr (kIsFloat<T>) {
      return scale_float(x, s);
    } else {
      return scale_integer(x, s);
    }
  }
};

struct uint8 : Plain<uint8_t> {};
struct int8 : Plain<int8_t> {};
struct uint16 : Plain<uint16_t> {};
struct int16 : Plain<int16_t> {};
struct int32 : Plain<int32_t> {};
struct int64 : Plain<int64_t> {};
struct float32 : Plain<float> {};
struct float64 : Plain<double> {};

struct boolean : Plain<uint8_t> {
  HVD_KERNEL_INLINE static uint8_t scale(uint8_t x, const Scaling& s) { return scale_truth(x, s); }
};

struct float16 {
  using Value = uint16_t;
  using Acc = float;
  HVD_KERNEL_INLINE static float widen(uint16_t x) { return half_to_float(x); }
  HVD_KERNEL_INLINE static uint16_t narrow(float x) { return float_to_half(x); }
  HVD_KERNEL_INLINE static float scale(float x, const Scaling& s) { return scale_float(x, s); }
};

struct bfloat16 : float16 {
  HVD_KERNEL_INLINE static float widen(uint16_t x) { return bfloat16_to_float(x); }
  HVD_KERNEL_INLINE static uint16_t narrow(float x) { return float_to_bfloat16(x); }
};

}  // namespace element

template <class E>
inline constexpr bool kIsTruth = false;
template <>
inline constexpr bool kIsTruth<element::boolean> = true;

template <class E>
inline constexpr int kBytes = sizeof(typename E::Value);
// True if scaling works on whole vectors. Integers are scaled one by one: this is rare, and a division in double for each lane would make
// the kernels' code long.
template <class E>
inline constexpr bool kScalesFast = kIsFloat<typename E::Acc>;

// ---- Operations on words --------------------------------------------------------------------------------------------

// Number of words that hold kLanes values, in memory and in the accumulation type. The functions below convert between the two.
template <class E, int kLanes>
inline constexpr int kMemoryWords = (kLanes * static_cast<int>(sizeof(typename E::Value)) + 3) / 4;
template <class E, int kLanes>
inline constexpr int kAccWords = (kLanes * static_cast<int>(sizeof(typename E::Acc)) + 3) / 4;

template <class E, int kLanes>
HVD_KERNEL_INLINE Words<kAccWords<E, kLanes>> widen(const Words<kMemoryWords<E, kLanes>>& x) {
  if constexpr (sizeof(typename E::Value) == sizeof(typename E::Acc)) {
    return x;
  } else {
    Words<kAccWords<E, kLanes>> y{};
    HVD_KERNEL_UNROLL
    for (int i = 0; i < kLanes; ++i) set_lane(y, i, E::widen(lane<typename E::Value>(x, i)));
    return y;
  }
}

template <class E, int kLanes>
HVD_KERNEL_INLINE Words<kMemoryWords<E, kLanes>> narrow(const Words<kAccWords<E, kLanes>>& x) {
  if constexpr (sizeof(typename E::Value) == sizeof(typename E::Acc)) {
    return x;
  } else {
    Words<kMemoryWords<E, kLanes>> y{};
    HVD_KERNEL_UNROLL
    for (int i = 0; i < kLanes; ++i) set_lane(y, i, E::narrow(lane<typename E::Acc>(x, i)));
    return y;
  }
}

template <class E, int kLanes, int N>
HVD_KERNEL_INLINE Words<N> scaled(const Words<N>& x, const Scaling& s) {
  Words<N> y{};
  HVD_KERNEL_UNROLL
  for (int i = 0; i < kLanes; ++i) set_lane(y, i, E::scale(lane<typename E::Acc>(x, i), s));
  return y;
}

// Compute a[k] = a[k] op b[k] for all k, lane by lane.
template <class T, int K, int N, class Apply>
HVD_KERNEL_INLINE void each_lane(Words<N> (&a)[K], const Words<N> (&b)[K], Apply apply) {
  constexpr int kLanes = N * 4 / static_cast<int>(sizeof(T));
  HVD_KERNEL_UNROLL
  for (int k = 0; k < K; ++k) {
    Words<N> y{};
    HVD_KERNEL_UNROLL
    for (int i = 0; i < kLanes; ++i) set_lane(y, i, apply(lane<T>(a[k], i), lane<T>(b[k], i)));
    a[k] = y;
  }
}

// Compute a[k] = a[k] op b[k] for all k, with operations that handle all lanes of a word together.
template <int K, int N, class Apply>
HVD_KERNEL_INLINE void each_word(Words<N> (&a)[K], const Words<N> (&b)[K], Apply apply) {
  HVD_KERNEL_UNROLL
  for (int k = 0; k < K; ++k) {
    HVD_KERNEL_UNROLL
    for (int i = 0; i < N; ++i) a[k].w[i] = apply(a[k].w[i], b[k].w[i]);
  }
}

// Operations on all lanes of a word at once, for 8-bit and 16-bit integers. Minimum and maximum exist only for 8 bits, because lane-by-lane
// code is shorter for two lanes. kUpper is the upper bit of each lane.
template <class T>
struct Narrow {
  static constexpr int kBits = 8 * sizeof(T);
  static constexpr uint32_t kUpper = sizeof(T) == 1 ? 0x80808080 : 0x80008000;
  // Add the lanes' upper bits separately, because their carry would spill into the next lane.
  HVD_KERNEL_INLINE static uint32_t sum(uint32_t a, uint32_t b) { return ((a & ~kUpper) + (b & ~kUpper)) ^ ((a ^ b) & kUpper); }
  // Return a mask with all bits set in the lanes where a < b, that is, where a - b borrows. Flipping the upper bits
  // maps the signed order to the unsigned order.
  HVD_KERNEL_INLINE static uint32_t less(uint32_t a, uint32_t b) {
    if constexpr (static_cast<T>(-1) < static_cast<T>(0)) a ^= kUpper, b ^= kUpper;
    const uint32_t difference = ((a | kUpper) - (b & ~kUpper)) ^ ((a ^ ~b) & kUpper);
    const uint32_t borrows = ((~a & b) | ((~a | b) & difference)) & kUpper;
    return (borrows >> (kBits - 1)) * ((1u << kBits) - 1);
  }
  HVD_KERNEL_INLINE static uint32_t min(uint32_t a, uint32_t b) {
    const uint32_t first = less(a, b);
    return (a & first) | (b & ~first);
  }
  HVD_KERNEL_INLINE static uint32_t max(uint32_t a, uint32_t b) {
    const uint32_t first = less(b, a);
    return (a & first) | (b & ~first);
  }
};

template <class T, int K, int N>
HVD_KERNEL_INLINE void add(Words<N> (&a)[K], const Words<N> (&b)[K]) {
  if constexpr (sizeof(T) < 4) {
    each_word(a, b, [](uint32_t x, uint32_t y) { return Narrow<T>::sum(x, y); });
  } else {
    each_lane<T>(a, b, [](T x, T y) { return Number<T>::sum(x, y); });
  }
}

// Compute a[k] = a[k] op b[k] for all k. All threads have the same `op`, so it is tested only once.
template <class E, int K, int N>
HVD_KERNEL_INLINE void combine(Words<N> (&a)[K], const Words<N> (&b)[K], Op op) {
  using Acc = typename E::Acc;
  if constexpr (kIsTruth<E>) {
    if (op == Op::min || op == Op::product) return each_word(a, b, [](uint32_t x, uint32_t y) { return truths(x) & truths(y); });
    return each_word(a, b, [](uint32_t x, uint32_t y) { return truths(x | y); });
  } else if constexpr (sizeof(Acc) == 1) {
    switch (op) {
      case Op::min: return each_word(a, b, [](uint32_t x, uint32_t y) { return Narrow<Acc>::min(x, y); });
      case Op::max: return each_word(a, b, [](uint32_t x, uint32_t y) { return Narrow<Acc>::max(x, y); });
      case Op::product: return each_lane<Acc>(a, b, [](Acc x, Acc y) { return Number<Acc>::product(x, y); });
      default: return add<Acc>(a, b);
    }
  } else {
    switch (op) {
      case Op::min: return each_lane<Acc>(a, b, [](Acc x, Acc y) { return Number<Acc>::min(x, y); });
      case Op::max: return each_lane<Acc>(a, b, [](Acc x, Acc y) { return Number<Acc>::max(x, y); });
      case Op::product: return each_lane<Acc>(a, b, [](Acc x, Acc y) { return Number<Acc>::product(x, y); });
      default: return add<Acc>(a, b);
    }
  }
}

}  // namespace hvd::kernels
