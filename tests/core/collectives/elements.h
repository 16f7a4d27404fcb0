// Test data and a simple scalar reference for reductions, which shares only half.h with the kernels.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/status.h"
#include "collectives/reduce.h"

namespace hvd::testing {

using Buffer = std::vector<std::byte>;

inline constexpr DType kAllDTypes[] = {DType::uint8,   DType::int8,    DType::uint16,  DType::int16,   DType::int32,   DType::int64,
                                       DType::float16, DType::float32, DType::float64, DType::boolean, DType::bfloat16};
inline constexpr ReduceOp kAllOps[] = {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product};

template <class T>
T get(const std::byte* p, size_t i) {
  T x;
  memcpy(&x, p + i * sizeof(T), sizeof(T));
  return x;
}
template <class T>
void put(std::byte* p, size_t i, T x) {
  memcpy(p + i * sizeof(T), &x, sizeof(T));
}

inline double get_float(DType d, const std::byte* p, size_t i) {
  switch (d) {
    case DType::float16: return half_to_float(get<uint16_t>(p, i));
    case DType::bfloat16: return bfloat16_to_float(get<uint16_t>(p, i));
    case DType::float32: return get<float>(p, i);
    default: return get<double>(p, i);
  }
}
inline void put_float(DType d, std::byte* p, size_t i, double x) {
  switch (d) {
    case DType::float16: return put(p, i, float_to_half(static_cast<float>(x)));
    case DType::bfloat16: return put(p, i, float_to_bfloat16(static_cast<float>(x)));
    case DType::float32: return put(p, i, static_cast<float>(x));
    default: return put(p, i, x);
  }
}

// Floats around one, integers over their whole range (so that sums wrap), bools 0 or 1.
inline Buffer random_elements(DType d, size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Buffer data(n * size_of(d));
  for (size_t i = 0; i < n; ++i) {
    const uint64_t bits = random();
    if (is_float(d)) {
      const double x = 0.5 + static_cast<double>(bits >> 11) * 0x1p-53;
      put_float(d, data.data(), i, bits & 1 ? x : -x);
    } else if (d == DType::boolean) {
      data[i] = std::byte{static_cast<uint8_t>(bits & 1)};
    } else {
      memcpy(data.data() + i * size_of(d), &bits, size_of(d));
    }
  }
  return data;
}

// A buffer for each rank, with random elements.
inline std::vector<Buffer> inputs(DType d, size_t n, int ranks, uint64_t seed) {
  std::vector<Buffer> all;
  for (int r = 0; r < ranks; ++r) all.push_back(random_elements(d, n, seed * 100 + static_cast<uint64_t>(r)));
  return all;
}

inline std::vector<const std::byte*> pointers(const std::vector<Buffer>& buffers) {
  std::vector<const std::byte*> p;
  for (const Buffer& b : buffers) p.push_back(b.data());
  return p;
}

template <class Acc>
Acc combine(ReduceOp op, Acc a, Acc b) {
  if constexpr (std::is_floating_point_v<Acc>) {
    if (op == ReduceOp::min || op == ReduceOp::max) {
      if (std::isnan(a)) return a;
      if (std::isnan(b)) return b;
    }
    if (op == ReduceOp::sum) return a + b;
    if (op == ReduceOp::product) return a * b;
  } else {
    using U = std::make_unsigned_t<Acc>;
    // In 64 bits, or the product of two 16-bit values would overflow int.
    if (op == ReduceOp::sum) return static_cast<Acc>(static_cast<U>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)));
    if (op == ReduceOp::product) return static_cast<Acc>(static_cast<U>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)));
  }
  return (op == ReduceOp::min) == (a < b) && a != b ? a : b;
}

// The canonical order, as in reduce.h: fold the first ranks in pairs, then combine neighbours until one value
// is left.
template <class Acc>
Acc in_order(ReduceOp op, std::vector<Acc> x) {
  size_t p = 1;
  while (2 * p <= x.size()) p *= 2;
  std::vector<Acc> partial;
  const size_t r = x.size() - p;
  for (size_t i = 0; i < r; ++i) partial.push_back(combine(op, x[2 * i], x[2 * i + 1]));
  for (size_t i = 2 * r; i < x.size(); ++i) partial.push_back(x[i]);
  while (partial.size() > 1) {
    std::vector<Acc> next;
    for (size_t i = 0; i < partial.size(); i += 2) next.push_back(combine(op, partial[i], partial[i + 1]));
    partial = next;
  }
  return partial[0];
}

template <class T>
void reference_integers(ReduceOp op, std::byte* dst, const std::vector<const std::byte*>& sources, size_t n, const Scale& scale) {
  for (size_t i = 0; i < n; ++i) {
    std::vector<T> x;
    for (auto* s : sources) x.push_back(get<T>(s, i));
    T y = in_order(op, x);
    if (!scale.identity()) {
      // long double holds every int64, so its rounding is that of the cast to double below, and the
      // comparison is exact.
      const double v = static_cast<double>(y) * scale.factor / static_cast<double>(scale.divisor);
      const long double w = std::trunc(static_cast<long double>(v));
      y = w >= static_cast<long double>(std::numeric_limits<T>::max())   ? std::numeric_limits<T>::max()
          : w <= static_cast<long double>(std::numeric_limits<T>::min()) ? std::numeric_limits<T>::min()
                                                                         : static_cast<T>(w);
    }
    put<T>(dst, i, y);
  }
}

template <class Acc>
void reference_floats(DType d, ReduceOp op, std::byte* dst, const std::vector<const std::byte*>& sources, size_t n, const Scale& scale) {
  const Acc factor = static_cast<Acc>(scale.factor / static_cast<double>(scale.divisor));
  for (size_t i = 0; i < n; ++i) {
    std::vector<Acc> x;
    for (auto* s : sources) x.push_back(static_cast<Acc>(get_float(d, s, i)));
    put_float(d, dst, i, static_cast<double>(in_order(op, x) * factor));
  }
}

// The expected bits of reduce_many and of every collective with the canonical order.
inline Buffer reference(DType d, ReduceOp op, const std::vector<const std::byte*>& sources, size_t n, const Scale& scale = {}) {
  Buffer out(n * size_of(d));
  std::byte* dst = out.data();
  switch (d) {
    case DType::uint8: reference_integers<uint8_t>(op, dst, sources, n, scale); break;
    case DType::int8: reference_integers<int8_t>(op, dst, sources, n, scale); break;
    case DType::uint16: reference_integers<uint16_t>(op, dst, sources, n, scale); break;
    case DType::int16: reference_integers<int16_t>(op, dst, sources, n, scale); break;
    case DType::int32: reference_integers<int32_t>(op, dst, sources, n, scale); break;
    case DType::int64: reference_integers<int64_t>(op, dst, sources, n, scale); break;
    case DType::float64: reference_floats<double>(d, op, dst, sources, n, scale); break;
    case DType::boolean:
      for (size_t i = 0; i < n; ++i) {
        size_t set = 0;
        for (auto* s : sources) set += s[i] != std::byte{0};
        const bool all = op == ReduceOp::min || op == ReduceOp::product;
        dst[i] = std::byte{(all ? set == sources.size() : set > 0) && scale.factor != 0};
      }
      break;
    default: reference_floats<float>(d, op, dst, sources, n, scale);
  }
  return out;
}

inline Buffer reference(DType d, ReduceOp op, const std::vector<Buffer>& sources, size_t n, const Scale& scale = {}) {
  return reference(d, op, pointers(sources), n, scale);
}

inline void check_ok(const std::vector<Status>& results) {
  for (const Status& s : results) CHECK_MESSAGE(s.ok(), s.message());
}

// Runs `body` once with each instruction set of this CPU.
template <class Body>
void each_isa(Body body) {
  const std::string before(isa());
  for (const char* name : {"plain", "avx2", "avx512"}) {
    if (!force_isa(name)) continue;
    CAPTURE(name);
    body();
  }
  REQUIRE(force_isa(before));
}

}  // namespace hvd::testing
