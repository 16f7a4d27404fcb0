#include "arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/half.h"

namespace simnccl {
namespace {

// A stored type, and its conversion to and from `Wide`, the type in which an operation is computed.
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

void reduce(const Reduce& how, void* out, const void* const* in, size_t count) {
  switch (how.type) {
    case ncclInt8: return run<Plain<int8_t>>(how, out, in, count);
    case ncclUint8: return run<Plain<uint8_t>>(how, out, in, count);
    case ncclInt32: return run<Plain<int32_t>>(how, out, in, count);
    case ncclInt64: return run<Plain<int64_t>>(how, out, in, count);
    case ncclFloat16: return run<Half>(how, out, in, count);
    case ncclFloat32: return run<Plain<float>>(how, out, in, count);
    case ncclFloat64: return run<Plain<double>>(how, out, in, count);
    case ncclBfloat16: return run<Brain>(how, out, in, count);
    default: return;
  }
}

}  // namespace simnccl
