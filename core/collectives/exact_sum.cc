#include "collectives/exact_sum.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace hvd {
namespace {

__extension__ typedef __int128 Wide;

constexpr int64_t kDoubleExact = int64_t{1} << 53;
constexpr Wide kWidest = static_cast<Wide>(~static_cast<unsigned __int128>(0) >> 1);

// Multiply an integer by a factor. A double has 53 significant bits, and an int64 sum over up to 2^11 ranks has 74 bits, so the product
// fits in 127 bits. Larger products saturate, like any result that the element type cannot hold.
Wide times_exactly(Wide x, double factor) {
  int exponent = 0;
  Wide product = x;
  if (__builtin_mul_overflow(x, static_cast<Wide>(std::ldexp(std::frexp(factor, &exponent), 53)), &product)) {
    return (x < 0) == (factor < 0) ? kWidest : -kWidest;
  }
  const int shift = exponent - 53;
  if (shift <= -127) return 0;
  if (shift < 0) return product / (Wide{1} << -shift);
  if (product != 0 && (shift >= 127 || __builtin_mul_overflow(product, Wide{1} << shift, &product))) {
    return (x < 0) == (factor < 0) ? kWidest : -kWidest;
  }
  return product;
}

Wide truncated(double x) {
  if (std::isnan(x)) return 0;
  if (std::fabs(x) >= 0x1p126) return x > 0 ? kWidest : -kWidest;
  return static_cast<Wide>(x);
}

// Scaling by a factor and a divisor, prepared once for many values.
class Scaler {
 public:
  explicit Scaler(const Scale& s) : factor_(s.factor), divisor_(s.divisor) {
    // Replace a factor such as 1/3 by an exact division. The nearest double is not exactly a third, but that is what the caller means.
    const double inverse = std::round(1.0 / s.factor);
    if (std::fabs(inverse) >= 1 && std::fabs(inverse) <= 0x1p53 && 1.0 / inverse == s.factor) {
      factor_ = 1.0;
      divisor_ *= static_cast<int64_t>(inverse);
    }
    fits_ = divisor_ > 0 && divisor_ == static_cast<int64_t>(divisor_);
  }
  Wide operator()(Wide x) const {
    // Avoid the 128-bit divisions below if possible, because they are library calls.
    if (factor_ == 1.0) {
      const auto narrow = static_cast<int64_t>(x);
      return fits_ && x == narrow ? Wide{narrow / static_cast<int64_t>(divisor_)} : x / divisor_;
    }
    const bool small = -kDoubleExact <= x && x <= kDoubleExact;
    if (small || !std::isfinite(factor_)) return truncated(static_cast<double>(x) * factor_ / static_cast<double>(divisor_));
    return times_exactly(x, factor_) / divisor_;
  }

 private:
  double factor_;
  Wide divisor_;
  bool fits_;
};

template <class T>
T clamped(Wide x, Wide low = std::numeric_limits<T>::min(), Wide high = std::numeric_limits<T>::max()) {
  return static_cast<T>(x < low ? low : x > high ? high : x);
}

template <class T>
void to(int64_t* words, const std::byte* src, size_t n, double factor) {
  // Maximum value of a word, which leaves room for the sum over 2^11 ranks.
  constexpr Wide kMax = sizeof(T) == 8 ? Wide{std::numeric_limits<int64_t>::max()} : Wide{1} << 52;
  const Scaler scaled({factor, 1});
  for (size_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, src + i * sizeof(T), sizeof(T));
    const auto x = factor == 1.0 ? static_cast<int64_t>(value) : clamped<int64_t>(scaled(value), -kMax - 1, kMax);
    if constexpr (sizeof(T) == 8) {
      words[2 * i] = x >> 32;
      words[2 * i + 1] = x & 0xffffffff;
    } else {
      words[i] = x;
    }
  }
}

template <class T>
void from(std::byte* dst, const int64_t* words, size_t n, const Scale& scale) {
  const Scaler scaled(scale);
  for (size_t i = 0; i < n; ++i) {
    Wide sum;
    if constexpr (sizeof(T) == 8) {
      sum = static_cast<Wide>(words[2 * i]) * (Wide{1} << 32) + words[2 * i + 1];
    } else {
      sum = words[i];
    }
    const T value = clamped<T>(scaled(sum));
    std::memcpy(dst + i * sizeof(T), &value, sizeof(T));
  }
}

template <class Function>
void with_type(DType d, Function function) {
  switch (d) {
    case DType::uint8: return function(uint8_t{});
    case DType::int8: return function(int8_t{});
    case DType::uint16: return function(uint16_t{});
    case DType::int16: return function(int16_t{});
    case DType::int32: return function(int32_t{});
    default: return function(int64_t{});
  }
}

}  // namespace

void to_words(DType d, int64_t* words, const std::byte* src, size_t n, double factor) {
  with_type(d, [&](auto type) { to<decltype(type)>(words, src, n, factor); });
}

void from_words(DType d, std::byte* dst, const int64_t* words, size_t n, const Scale& scale) {
  with_type(d, [&](auto type) { from<decltype(type)>(dst, words, n, scale); });
}

}  // namespace hvd
