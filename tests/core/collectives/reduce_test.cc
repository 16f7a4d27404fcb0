#include "collectives/reduce.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "elements.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("an unknown implementation is refused and changes nothing") {
  const std::string before(isa());
  CHECK_FALSE(force_isa("mmx"));
  CHECK_FALSE(force_isa(""));
  CHECK(isa() == before);
}

TEST_CASE("scalar 16-bit floats: known values") {
  CHECK(half_to_float(0x3c00) == 1.0f);
  CHECK(half_to_float(0x0001) == 0x1p-24f);
  CHECK(half_to_float(0x7bff) == 65504.0f);
  CHECK(std::isinf(half_to_float(0xfc00)));
  CHECK(std::isnan(half_to_float(0x7c01)));
  CHECK(float_to_half(65519.99f) == 0x7bff);
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_half(1.0f + 0x1p-11f) == 0x3c00);          // a tie goes to even
  CHECK(float_to_half(1.0f + 3 * 0x1p-11f) == 0x3c02);
  CHECK(float_to_half(0x1p-25f) == 0x0000);                 // a tie between zero and the least denormal
  CHECK(float_to_half(0x1.002p-25f) == 0x0001);
  CHECK(float_to_half(-0.0f) == 0x8000);
  CHECK(float_to_half(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK((float_to_half(std::bit_cast<float>(0x7f800001u)) & 0x7fff) > 0x7c00);
  CHECK(float_to_bfloat16(1.0f + 0x1p-8f) == 0x3f80);
  CHECK(float_to_bfloat16(1.0f + 3 * 0x1p-8f) == 0x3f82);
  CHECK(float_to_bfloat16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK((float_to_bfloat16(std::bit_cast<float>(0x7f800001u)) & 0x7fff) > 0x7f80);
}

TEST_CASE("widen and narrow agree with the scalar functions on every 16-bit value and around every rounding") {
  each_isa([] {
    for (DType d : {DType::float16, DType::bfloat16}) {
      CAPTURE(static_cast<int>(d));
      std::vector<uint16_t> all(65536);
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
      std::vector<float> wide(all.size());
      widen(d, wide.data(), reinterpret_cast<const std::byte*>(all.data()), all.size());
      size_t wrong = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        const float want = d == DType::float16 ? half_to_float(all[i]) : bfloat16_to_float(all[i]);
        wrong += std::isnan(want) ? !std::isnan(wide[i]) : std::bit_cast<uint32_t>(want) != std::bit_cast<uint32_t>(wide[i]);
      }
      CHECK(wrong == 0);
      // Each value, the next larger and smaller one, and the same around the midpoint to its neighbour.
      const uint32_t half_step = d == DType::float16 ? 0x1000 : 0x8000;
      std::vector<float> probes;
      for (float w : wide) {
        const uint32_t bits = std::bit_cast<uint32_t>(w);
        for (uint32_t base : {bits, bits + half_step, bits - half_step}) {
          for (uint32_t off : {0u, 1u, ~0u}) probes.push_back(std::bit_cast<float>(base + off));
        }
      }
      std::vector<uint16_t> narrowed(probes.size());
      narrow(d, reinterpret_cast<std::byte*>(narrowed.data()), probes.data(), probes.size());
      for (size_t i = 0; i < probes.size(); ++i) {
        wrong += narrowed[i] != (d == DType::float16 ? float_to_half(probes[i]) : float_to_bfloat16(probes[i]));
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("reduce2: every dtype, operation and odd size against the reference") {
  each_isa([] {
    for (DType d : kAllDTypes) {
      for (ReduceOp op : kAllOps) {
        for (size_t n : {size_t{0}, size_t{1}, size_t{7}, size_t{64}, size_t{1000}}) {
          INFO(name_of(d), " ", name_of(op), " ", n);
          const auto in = inputs(d, n, 2, n);
          const Buffer want = reference(d, op, in, n);
          Buffer out(n * size_of(d));
          reduce2(d, op, out.data(), in[0].data(), in[1].data(), n);
          CHECK(out == want);
          Buffer a = in[0], b = in[1];
          reduce2(d, op, a.data(), a.data(), b.data(), n);
          CHECK(a == want);
          reduce2(d, op, b.data(), in[0].data(), b.data(), n);
          CHECK(b == want);
        }
      }
    }
  });
}

TEST_CASE("reduce_many follows THE order for any number of sources, scaled or not, streaming or not") {
  each_isa([] {
    for (DType d : kAllDTypes) {
      for (ReduceOp op : kAllOps) {
        for (int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 17}) {
          for (const Scale& s : {Scale{}, Scale{1.0, ranks}, Scale{0.37, 3}}) {
            const size_t n = ranks == 5 ? 5003 : 133;  // several blocks, and less than one
            INFO(name_of(d), " ", name_of(op), " of ", ranks, " x ", n, " scaled by ", s.factor, "/", s.divisor);
            const auto in = inputs(d, n, ranks, ranks);
            const Buffer want = reference(d, op, in, n, s);
            Buffer out(n * size_of(d));
            reduce_many(d, op, out.data(), pointers(in), n, s);
            CHECK(out == want);
            if (ranks != 5) continue;
            std::fill(out.begin(), out.end(), std::byte{0xee});
            reduce_many(d, op, out.data(), pointers(in), n, s, true);
            CHECK(out == want);
            for (int aliased : {0, 2, 4}) {
              auto copies = in;
              reduce_many(d, op, copies[aliased].data(), pointers(copies), n, s);
              CHECK(copies[aliased] == want);
            }
          }
        }
      }
    }
  });
}

TEST_CASE("16-bit sums are rounded once, at the end") {
  // 2048 + 1 is not a float16, but 2048 + 1 + 1 is.
  const uint16_t big = float_to_half(2048), one = float_to_half(1);
  for (int ranks : {3, 5, 9}) {
    std::vector<const std::byte*> p(ranks, reinterpret_cast<const std::byte*>(&one));
    p[0] = reinterpret_cast<const std::byte*>(&big);
    uint16_t out;
    reduce_many(DType::float16, ReduceOp::sum, reinterpret_cast<std::byte*>(&out), p, 1, {});
    CHECK(half_to_float(out) == 2048.0f + static_cast<float>(ranks - 1));
  }
}

TEST_CASE("min and max keep NaN, whichever side it comes from; infinities and denormals survive") {
  each_isa([] {
    for (DType d : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
      const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
      const double tiny = d == DType::float16 ? 0x1p-24 : d == DType::float64 ? 0x1p-1074 : 0x1p-133;
      const double a[] = {nan, 1, nan, inf, -inf, tiny, -tiny}, b[] = {1, nan, nan, 2, 2, 0, 0};
      constexpr size_t kSome = 7, kRepeats = 13;  // long enough for whole vectors
      Buffer x(kSome * kRepeats * size_of(d)), y(x.size()), out(x.size());
      for (size_t i = 0; i < kSome * kRepeats; ++i) {
        put_float(d, x.data(), i, a[i % kSome]);
        put_float(d, y.data(), i, b[i % kSome]);
      }
      for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
        reduce2(d, op, out.data(), x.data(), y.data(), kSome * kRepeats);
        for (size_t i = 0; i < kSome * kRepeats; ++i) {
          INFO(name_of(d), " ", name_of(op), " of ", a[i % kSome], " and ", b[i % kSome]);
          const double got = get_float(d, out.data(), i), u = a[i % kSome], v = b[i % kSome];
          if (std::isnan(u) || std::isnan(v)) {
            CHECK(std::isnan(got));
          } else {
            CHECK(got == (op == ReduceOp::min ? std::min(u, v) : std::max(u, v)));
          }
        }
      }
    }
  });
}

TEST_CASE("scaling integers truncates towards zero and stays in range") {
  const int32_t x[] = {7, -7, 1, -1, std::numeric_limits<int32_t>::max()};
  int32_t out[5];
  scale(DType::int32, reinterpret_cast<std::byte*>(out), reinterpret_cast<const std::byte*>(x), 5, {1.0, 2});
  CHECK((out[0] == 3 && out[1] == -3 && out[2] == 0 && out[3] == 0));
  scale(DType::int32, reinterpret_cast<std::byte*>(out), reinterpret_cast<const std::byte*>(x), 5, {1e6, 1});
  CHECK(out[4] == std::numeric_limits<int32_t>::max());
  CHECK(out[1] == -7000000);
  scale(DType::int32, reinterpret_cast<std::byte*>(out), reinterpret_cast<const std::byte*>(x), 5, {std::nan(""), 1});
  CHECK(out[0] == 0);
}

TEST_CASE("unaligned pointers, and nothing is written outside the range") {
  each_isa([] {
    for (DType d : kAllDTypes) {
      for (size_t shift : {1u, 3u, 61u}) {
        for (size_t n : {1u, 15u, 3001u}) {
          INFO(name_of(d), " ", shift, " ", n);
          const auto in = inputs(d, n, 3, shift);
          std::vector<Buffer> moved;
          std::vector<const std::byte*> p;
          for (auto& b : in) {
            moved.emplace_back(b.size() + 64);
            std::copy(b.begin(), b.end(), moved.back().begin() + shift);
          }
          for (auto& b : moved) p.push_back(b.data() + shift);
          for (bool streaming : {false, true}) {
            Buffer out(n * size_of(d) + 128, std::byte{0x5a});
            reduce_many(d, ReduceOp::sum, out.data() + shift, p, n, {}, streaming);
            const Buffer want = reference(d, ReduceOp::sum, in, n);
            CHECK(std::equal(want.begin(), want.end(), out.begin() + shift));
            for (size_t i = 0; i < out.size(); ++i) {
              if (i < shift || i >= shift + want.size()) REQUIRE(out[i] == std::byte{0x5a});
            }
          }
        }
      }
    }
  });
}
