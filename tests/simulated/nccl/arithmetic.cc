#include "arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/half.h"

namespace simnccl {
namespace {

// A type as stored, and how a value of it is widened and narrowed. `Wide` is where one operation takes place.
template <class T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static Wide load(Stored v) { return v; }
  static Stored store(Wide v) { return v; }
};
struct Half {
  using Stored = uint16_t;
  using Wide = float;
  static Wide load(Stored v) { return hvd::half_to_float(v); }
  static Stored store(Wide v) { return hvd::float_to_half(v); }
};
struct Brain {
  using Stored = uint16_t;
  using Wide = float;
  static Wide load(Stored v) { return hvd::bfloat16_to_float(v); }
  static Stored store(Wide v) { return hvd::float_to_bfloat16(v); }
};
// kFraction bits, exponents from kLeast on; NaN is all ones. Results go through float16 first; too large ones become the largest number.
template <int kFraction, int kLeast, int kLargest>
struct Eighth {
  using Stored = uint8_t;
  using Wide = float;
  static Wide load(Stored v) {
    const int exponent = (v & 0x7f) >> kFraction, fraction = v & ((1 << kFraction) - 1);
    if ((v & 0x7f) > largest()) return std::nanf("");
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), kLeast - kFraction)
                                          : std::ldexp(static_cast<float>(fraction + (1 << kFraction)), kLeast - kFraction + exponent - 1);
    return v & 0x80 ? -magnitude : magnitude;
  }
  static Stored store(Wide wide) {
    const float v = Half::load(Half::store(wide));
    if (std::isnan(v)) return 0x7f;
    const float magnitude = std::min(std::fabs(v), static_cast<float>(kLargest));
    const Stored sign = std::signbit(v) ? 0x80 : 0;
    if (magnitude == 0) return sign;
    const int exponent = std::max(std::ilogb(magnitude), kLeast);
    const int places = static_cast<int>(std::nearbyint(std::ldexp(magnitude, kFraction - exponent)));
    return static_cast<Stored>(sign | std::min(((exponent - kLeast) << kFraction) + places, largest()));
  }
  static constexpr int largest() { return kFraction == 3 ? 0x7e : 0x7b; }
};
using E4m3 = Eighth<3, -6, 448>;
using E5m2 = Eighth<2, -14, 57344>;

template <class T>
T combine(int op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    using Widest = std::conditional_t<(sizeof(T) < 4), unsigned, U>;
    if (op == ncclSum)
      return static_cast<T>(static_cast<U>(static_cast<Widest>(static_cast<U>(a)) + static_cast<Widest>(static_cast<U>(b))));
    if (op == ncclProd)
      return static_cast<T>(static_cast<U>(static_cast<Widest>(static_cast<U>(a)) * static_cast<Widest>(static_cast<U>(b))));
    return op == ncclMax ? std::max(a, b) : std::min(a, b);
  } else {
    if (op == ncclSum) return a + b;
    if (op == ncclProd) return a * b;
    return op == ncclMax ? std::fmax(a, b) : std::fmin(a, b);
  }
}

template <class E>
void run(const Reduce& how, void* out, const void* const* in, size_t count) {
  using Stored = typename E::Stored;
  using Wide = typename E::Wide;
  constexpr size_t kBlock = 64;
  const bool average = how.op == ncclAvg;
  const int op = average || how.premultiplied ? ncclSum : how.op;
  bool multiplied = how.premultiplied;
  Wide scalar{1};
  if (how.premultiplied) {
    Stored stored;
    std::memcpy(&stored, how.scalar, sizeof stored);
    scalar = E::load(stored);
  } else if (average && !std::is_integral_v<Wide>) {
    multiplied = true;
    scalar = E::load(E::store(static_cast<Wide>(1.0 / how.size)));
  }
  const auto n = static_cast<size_t>(how.size);
  for (size_t i = 0; i < count; ++i) {
    Stored result{};
    for (size_t r = 0; r < n; ++r) {
      Stored v;
      std::memcpy(&v, static_cast<const Stored*>(in[(i / kBlock + r) % n]) + i, sizeof v);
      if (multiplied) v = E::store(E::load(v) * scalar);
      result = r == 0 ? v : E::store(combine<Wide>(op, E::load(result), E::load(v)));
    }
    if constexpr (std::is_integral_v<Wide>) {
      if (average) result = static_cast<Stored>(result / static_cast<Wide>(how.size));
    }
    std::memcpy(static_cast<Stored*>(out) + i, &result, sizeof result);
  }
}

}  // namespace

size_t bytes_of(ncclDataType_t type) {
  constexpr size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[type];
}

bool is_floating(ncclDataType_t type) { return type >= ncclFloat16; }

void reduce(const Reduce& how, void* out, const void* const* in, size_t count) {
  switch (how.type) {
    case ncclInt8: return run<Plain<int8_t>>(how, out, in, count);
    case ncclUint8: return run<Plain<uint8_t>>(how, out, in, count);
    case ncclInt32: return run<Plain<int32_t>>(how, out, in, count);
    case ncclUint32: return run<Plain<uint32_t>>(how, out, in, count);
    case ncclInt64: return run<Plain<int64_t>>(how, out, in, count);
    case ncclUint64: return run<Plain<uint64_t>>(how, out, in, count);
    case ncclFloat16: return run<Half>(how, out, in, count);
    case ncclFloat32: return run<Plain<float>>(how, out, in, count);
    case ncclFloat64: return run<Plain<double>>(how, out, in, count);
    case ncclBfloat16: return run<Brain>(how, out, in, count);
    case ncclFloat8e4m3: return run<E4m3>(how, out, in, count);
    case ncclFloat8e5m2: return run<E5m2>(how, out, in, count);
    default: return;
  }
}

}  // namespace simnccl
