#include "nccl/decide.h"

#include <doctest/doctest.h>

#include <cstring>

#include "base/half.h"
#include "contains.h"

using namespace hvd;
using namespace hvd::nccl;
using hvd::testing::contains;

namespace {

Question question(Element e, ReduceOp op, int size, double prescale = 1, double postscale = 1) {
  return {.element = e, .op = op, .prescale = prescale, .postscale = postscale, .size = size, .version = 22809};
}

// Factors that the caller does not apply are applied by NCCL: their product is that of the request.
void check_whole(const Question& q, const Reduction& r) {
  const double scale = q.prescale * q.postscale / (q.op == ReduceOp::average ? q.size : 1);
  double got = r.before.factor * r.after.factor / static_cast<double>(r.before.divisor * r.after.divisor);
  if (r.premultiplied) got *= r.scalar;
  if (r.op == Op::average) got /= q.size;
  CHECK(got == doctest::Approx(scale));
}

uint64_t encoded(Type type, double value) {
  unsigned char bytes[8] = {};
  encode_scalar(type, value, bytes);
  uint64_t bits = 0;
  std::memcpy(&bits, bytes, nccl::size_of(type));
  return bits;
}

}  // namespace

TEST_CASE("an average in 16 bits is NCCL's own only where the factor is a power of two") {
  for (const Element e : {Element::float16, Element::bfloat16, Element::float8_e4m3, Element::float8_e5m2}) {
    for (int size = 1; size <= 16; ++size) {
      const Question q = question(e, ReduceOp::average, size);
      const Reduction r = decide(q);
      CAPTURE(size);
      REQUIRE(r.possible());
      check_whole(q, r);
      CHECK_FALSE(r.premultiplied);
      const bool power = size > 1 && (size & (size - 1)) == 0;
      CHECK((r.op == Op::average) == power);
      // If a sum could overflow, division comes first.
      CHECK((e == Element::bfloat16 ? r.after : r.before).divisor == (power ? 1 : size));
      CHECK((e == Element::bfloat16 ? r.before : r.after).identity());
    }
  }
}

TEST_CASE("wide floats are averaged by NCCL for any number of ranks, and of one rank nothing but a copy is asked") {
  for (const Element e : {Element::float32, Element::float64}) {
    CHECK(decide(question(e, ReduceOp::average, 3)).op == Op::average);
    CHECK(decide(question(e, ReduceOp::average, 3)).after.identity());
    const Reduction alone = decide(question(e, ReduceOp::average, 1, 0.5, 3));
    CHECK(alone.op == Op::sum);
    CHECK_FALSE(alone.premultiplied);
    CHECK(alone.before.factor == 0.5);
    CHECK(alone.after.factor == 3);
  }
}

TEST_CASE("factors of floats are folded into one where that is exact, else what is left is the caller's") {
  Question q = question(Element::float32, ReduceOp::average, 3, 0.5, 4);
  Reduction r = decide(q);
  CHECK(r.premultiplied);
  CHECK(r.scalar == doctest::Approx(2.0 / 3));
  CHECK((r.before.identity() && r.after.identity()));

  // 0.75 is exact in bfloat16 but no power of two: applied before the sum it rounds as the host does, but not
  // after it.
  q = question(Element::bfloat16, ReduceOp::average, 4, 0.75);
  r = decide(q);
  check_whole(q, r);
  CHECK(r.premultiplied);
  CHECK(r.scalar == 0.75);
  CHECK(r.after.divisor == 4);

  q = question(Element::bfloat16, ReduceOp::sum, 4, 1.0 / 3);
  r = decide(q);
  check_whole(q, r);
  CHECK_FALSE(r.premultiplied);
  CHECK(r.before.factor == 1.0 / 3);

  q = question(Element::float16, ReduceOp::average, 6, 1.0 / 2, 6);  // the same as a sum with half of each
  r = decide(q);
  check_whole(q, r);
  CHECK((r.premultiplied && r.scalar == 0.5 && r.after.identity()));

  q = question(Element::float16, ReduceOp::sum, 2, 0x1p-30);  // too small for float16
  r = decide(q);
  CHECK_FALSE(r.premultiplied);
  CHECK(r.before.factor == 0x1p-30);
}

TEST_CASE("where a kernel follows anyway it scales, but not float16, whose sum could overflow before") {
  Question q = question(Element::bfloat16, ReduceOp::average, 4, 0.5);
  q.scaled_afterwards = true;
  Reduction r = decide(q);
  CHECK((r.op == Op::sum && !r.premultiplied && r.before.identity()));
  CHECK((r.after.factor == 0.5 && r.after.divisor == 4));
  q.element = Element::float16;
  r = decide(q);
  CHECK((r.premultiplied && r.scalar == 0.125 && r.after.identity()));
}

TEST_CASE("sums of integers are for NCCL unless they are averaged or scaled; maxima are scaled by the caller") {
  CHECK_FALSE(decide(question(Element::int32, ReduceOp::average, 4)).possible());
  CHECK_FALSE(decide(question(Element::int32, ReduceOp::sum, 4, 3)).possible());
  CHECK_FALSE(decide(question(Element::uint8, ReduceOp::sum, 4, 1, 0.5)).possible());
  const Reduction r = decide(question(Element::int32, ReduceOp::max, 4, 3, 0.5));
  CHECK((r.op == Op::max && !r.premultiplied && r.type == Type::int32));
  CHECK((r.before.factor == 3 && r.before.divisor == 1 && r.after.factor == 0.5 && r.after.divisor == 1));
  for (const DType d : {DType::int8, DType::uint8, DType::int32, DType::int64}) {
    CHECK(decide(question(element_of(d), ReduceOp::sum, 3)).possible());
    CHECK(nccl::size_of(decide(question(element_of(d), ReduceOp::sum, 3)).type) == hvd::size_of(d));
  }
}

TEST_CASE("min, max and product are never premultiplied") {
  const std::pair<ReduceOp, Op> pairs[] = {{ReduceOp::min, Op::min}, {ReduceOp::max, Op::max}, {ReduceOp::product, Op::product}};
  for (const auto& [op, code] : pairs) {
    const Reduction r = decide(question(Element::float32, op, 4, 0.5, 2));
    CHECK((r.op == code && !r.premultiplied));
    CHECK((r.before.factor == 0.5 && r.after.factor == 2));
  }
}

TEST_CASE("what NCCL cannot is refused in words that name it") {
  CHECK(contains(decide(question(element_of(DType::int16), ReduceOp::sum, 2)).why_not, "int16"));
  CHECK(contains(decide(question(element_of(DType::uint16), ReduceOp::max, 2)).why_not, "uint16"));
  CHECK(contains(decide(question(Element::float32, ReduceOp::adasum, 2)).why_not, "Adasum"));
  Question q = question(Element::float8_e4m3, ReduceOp::sum, 2);
  CHECK(decide(q).possible());
  q.version = 22304;
  CHECK(contains(decide(q).why_not, "2.23.4"));
  q.version = 22400, q.capability = 80;
  CHECK(contains(decide(q).why_not, "9.0"));
}

TEST_CASE("scalars have the type of the data") {
  CHECK(encoded(Type::float32, 0.5) == 0x3f000000);
  CHECK(encoded(Type::float64, 0.5) == 0x3fe0000000000000);
  CHECK(encoded(Type::float16, 0.125) == float_to_half(0.125f));
  CHECK(encoded(Type::bfloat16, 0.125) == float_to_bfloat16(0.125f));
  CHECK(encoded(Type::int32, -3) == 0xfffffffd);
  // e4m3: bias 7, smallest normal 2^-6, smallest denormal 2^-9, largest 448. e5m2: bias 15, 2^-14, 2^-16,
  // 57344.
  CHECK(encoded(Type::float8_e4m3, 1) == 0x38);
  CHECK(encoded(Type::float8_e4m3, 0.0625) == 0x18);
  CHECK(encoded(Type::float8_e4m3, -1.75) == 0xbe);
  CHECK(encoded(Type::float8_e4m3, 0x1p-9) == 0x01);
  CHECK(encoded(Type::float8_e4m3, 0x1p-6) == 0x08);
  CHECK(encoded(Type::float8_e4m3, 448) == 0x7e);
  CHECK(encoded(Type::float8_e5m2, 1) == 0x3c);
  CHECK(encoded(Type::float8_e5m2, 0.25) == 0x34);
  CHECK(encoded(Type::float8_e5m2, 0x1p-16) == 0x01);
  CHECK(encoded(Type::float8_e5m2, 57344) == 0x7b);
}
