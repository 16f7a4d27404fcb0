// Data for kernels at chosen distances from a 16-byte boundary, special values, and comparison of results.
#pragma once
#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "collectives/reduce.h"
#include "runner.h"

namespace hvd::testing {

template <class Parameters>
void launch(size_t kernel, kernels::Geometry geometry, const Parameters& parameters) {
  REQUIRE(kernels::all()[kernel].parameter_bytes == sizeof parameters);
  runner().launch(kernel, geometry, &parameters);
}

// Bytes at `shift` after a multiple of 16, with guards on both sides that must stay unchanged.
class Placed {
 public:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kBehind = 0;  // the sanitizer also detects reads beyond the end
#else
  static constexpr size_t kBehind = 32;
#endif
  Placed(size_t bytes, size_t shift)
      : bytes_(bytes), all_(32 + shift + bytes + kBehind), memory_(runner().take(all_)), begin_(memory_.get() + 32 + shift) {
    REQUIRE(reinterpret_cast<uintptr_t>(memory_.get()) % 16 == 0);
    memset(memory_.get(), 0x5a, all_);
  }
  Placed(const std::vector<std::byte>& data, size_t shift) : Placed(data.size(), shift) {
    if (!data.empty()) memcpy(begin_, data.data(), data.size());
  }
  std::byte* data() { return begin_; }
  uint64_t address() const { return runner().address(begin_); }
  size_t size() const { return bytes_; }
  std::vector<std::byte> copy() const { return {begin_, begin_ + bytes_}; }
  bool guards_stand() const {
    for (const std::byte* p = memory_.get(); p < memory_.get() + all_; ++p) {
      if ((p < begin_ || p >= begin_ + bytes_) && *p != std::byte{0x5a}) return false;
    }
    return true;
  }

 private:
  struct GiveBack {
    void operator()(std::byte* piece) const { runner().give_back(piece); }
  };
  size_t bytes_, all_;
  std::unique_ptr<std::byte, GiveBack> memory_;
  std::byte* begin_;
};

template <class T>
T element(const std::byte* p, size_t i) {
  T x;
  memcpy(&x, p + i * sizeof(T), sizeof(T));
  return x;
}

inline bool is_nan(DType d, const std::byte* p, size_t i) {
  switch (d) {
    case DType::float16: return (element<uint16_t>(p, i) & 0x7fff) > 0x7c00;
    case DType::bfloat16: return (element<uint16_t>(p, i) & 0x7fff) > 0x7f80;
    case DType::float32: return element<float>(p, i) != element<float>(p, i);
    case DType::float64: return element<double>(p, i) != element<double>(p, i);
    default: return false;
  }
}

// The first element whose bits differ, with all NaNs equal; n if there is none.
inline size_t first_difference(DType d, const std::byte* a, const std::byte* b, size_t n) {
  const size_t bytes = size_of(d);
  for (size_t i = 0; i < n; ++i) {
    if (memcmp(a + i * bytes, b + i * bytes, bytes) == 0) continue;
    if (!is_nan(d, a, i) || !is_nan(d, b, i)) return i;
  }
  return n;
}

// Random bits with special values: zeros of both signs, ones, infinities, NaN, the smallest and largest
// normals and denormals, and ordinary values, so that not everything overflows. Bools: any byte.
inline std::vector<std::byte> awkward(DType d, size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(n * size_of(d));
  static constexpr uint32_t kHalf[] = {0x0000, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e01,
                                       0x7bff, 0xfbff, 0x0001, 0x8001, 0x03ff, 0x0400};
  static constexpr uint32_t kBrain[] = {0x0000, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc1,
                                        0x7f7f, 0xff7f, 0x0001, 0x8001, 0x007f, 0x0080};
  for (size_t i = 0; i < n; ++i) {
    uint64_t bits = random();
    const uint64_t kind = random() % 8;
    const size_t special = random() % std::size(kHalf);
    if (is_float(d) && kind == 0) {
      // float64 and float32 have the same classes of numbers: those of bfloat16, with all further bits of the
      // significand zero or one.
      const uint64_t rest = random() % 2 ? ~uint64_t{0} : 0;
      if (d == DType::float16) bits = kHalf[special];
      if (d == DType::bfloat16) bits = kBrain[special];
      if (d == DType::float32) bits = kBrain[special] << 16 | ((kBrain[special] & 0x7f80) != 0x7f80 ? rest & 0xffff : 0);
      if (d == DType::float64) {
        const double table[] = {0.0,
                                -0.0,
                                1.0,
                                -1.0,
                                1 / 0.0,
                                -1 / 0.0,
                                0 / 0.0,
                                1.7976931348623157e308,
                                -1.7976931348623157e308,
                                4.9e-324,
                                -4.9e-324,
                                2.2250738585072009e-308,
                                2.2250738585072014e-308};
        bits = std::bit_cast<uint64_t>(table[special]);
      }
    } else if (is_float(d) && kind < 6) {
      const double x = (static_cast<double>(bits >> 11) * 0x1p-53 + 0.5) * (bits & 1 ? 1 : -1);
      switch (d) {
        case DType::float16: bits = float_to_half(static_cast<float>(x)); break;
        case DType::bfloat16: bits = float_to_bfloat16(static_cast<float>(x)); break;
        case DType::float32: bits = std::bit_cast<uint32_t>(static_cast<float>(x)); break;
        default: bits = std::bit_cast<uint64_t>(x);
      }
    } else if (d == DType::boolean) {
      bits = kind < 4 ? 0 : kind < 7 ? 1 : bits;
    }
    memcpy(data.data() + i * size_of(d), &bits, size_of(d));
  }
  return data;
}

inline constexpr DType kEveryDType[] = {DType::uint8,   DType::int8,    DType::uint16,  DType::int16,   DType::int32,   DType::int64,
                                        DType::float16, DType::float32, DType::float64, DType::boolean, DType::bfloat16};
static_assert(std::size(kEveryDType) == kDTypeCount);

struct Factor {
  double factor;
  int64_t divisor;
};
inline constexpr Factor kFactors[] = {{1, 1}, {1, 3}, {0.7, 1}, {-2.5, 7}, {1e300, 1}, {0, 1}};

}  // namespace hvd::testing
