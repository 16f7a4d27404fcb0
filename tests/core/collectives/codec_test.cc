// Wire formats of float32, compared with definitions in this file, at the limits of the range, and on every
// instruction set.
#include "collectives/codec.h"

#include <doctest/doctest.h>

#include <cfloat>
#include <string>

#include "elements.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr WireFormat kFormats[] = {WireFormat::fp16, WireFormat::bf16, WireFormat::int8};
constexpr size_t kCounts[] = {0, 1, 2, 31, 255, 256, 257, 1000, 4097};

std::vector<float> values(size_t n, uint64_t seed, float magnitude = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, magnitude);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// Encodes and decodes with unaligned memory and a guard after it.
std::vector<float> through(WireFormat f, const std::vector<float>& x) {
  const size_t bytes = coded_bytes(f, x.size());
  std::vector<std::byte> coded(bytes + 2, std::byte{0x5a});
  encode_floats(f, coded.data() + 1, x.data(), x.size());
  CHECK(coded.front() == std::byte{0x5a});
  CHECK(coded.back() == std::byte{0x5a});
  std::vector<float> y(x.size());
  decode_floats(f, y.data(), coded.data() + 1, y.size());
  return y;
}

// The definition of int8 in codec.h, one value at a time.
float int8_reference(const std::vector<float>& x, size_t i) {
  const size_t first = i / kCodeBlock * kCodeBlock;
  float largest = 0x1p-100f;
  for (size_t j = first; j < std::min(first + kCodeBlock, x.size()); ++j) largest = std::max(largest, std::fabs(x[j]));
  const float scale = std::bit_cast<float>(std::bit_cast<uint32_t>(largest / 127) & ~0x7fu);
  return std::nearbyint(x[i] * (1 / scale)) * scale;
}

}  // namespace

TEST_CASE("values come back as the definitions say") {
  for (size_t n : kCounts) {
    CAPTURE(n);
    const auto x = values(n, n + 1);
    const auto half = through(WireFormat::fp16, x), brain = through(WireFormat::bf16, x), byte = through(WireFormat::int8, x);
    size_t wrong = 0, far = 0;
    for (size_t i = 0; i < n; ++i) {
      wrong += half[i] != half_to_float(float_to_half(x[i]));
      wrong += brain[i] != bfloat16_to_float(float_to_bfloat16(x[i]));
      wrong += byte[i] != int8_reference(x, i);
      float largest = 0;
      const size_t first = i / kCodeBlock * kCodeBlock;
      for (size_t j = first; j < std::min(first + kCodeBlock, n); ++j) largest = std::max(largest, std::fabs(x[j]));
      far += std::fabs(static_cast<double>(byte[i]) - x[i]) > largest / 254.0 * 1.001;
    }
    CHECK(wrong == 0);
    CHECK(far == 0);
  }
}

TEST_CASE("the same bits on every instruction set") {
  const std::string best(isa());
  for (float magnitude : {1.0f, 1e-30f, 1e30f}) {
    const auto x = values(2000, 5, magnitude);
    REQUIRE(force_isa("plain"));
    for (WireFormat f : kFormats) {
      std::vector<std::byte> plain(coded_bytes(f, x.size())), other(plain.size());
      force_isa("plain");
      encode_floats(f, plain.data(), x.data(), x.size());
      const auto back = through(f, x);
      for (const char* name : {"avx2", "avx512"}) {
        if (!force_isa(name)) continue;
        encode_floats(f, other.data(), x.data(), x.size());
        CHECK(other == plain);
        CHECK(through(f, x) == back);
      }
    }
  }
  force_isa(best);
}

TEST_CASE("what is not finite stays so: element by element in 16 bits, as a whole block in int8") {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (float bad : {infinity, -infinity, nan, -nan}) {
    auto x = values(700, 3);
    x[300] = bad;  // the second block of three
    for (WireFormat f : {WireFormat::fp16, WireFormat::bf16}) {
      const auto y = through(f, x);
      CHECK((std::isnan(bad) ? std::isnan(y[300]) : y[300] == bad));
      for (size_t i : {size_t{299}, size_t{301}}) CHECK(std::isfinite(y[i]));
    }
    const auto y = through(WireFormat::int8, x);
    for (size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i / kCodeBlock == 1));
  }
  CHECK(through(WireFormat::fp16, {65504.0f, 65519.0f, 65520.0f, -1e6f}) == std::vector<float>{65504.0f, 65504.0f, infinity, -infinity});
  CHECK(std::isfinite(through(WireFormat::bf16, {1e38f})[0]));
}
