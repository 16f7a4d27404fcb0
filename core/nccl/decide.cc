#include "nccl/decide.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"

namespace hvd::nccl {
namespace {

constexpr int kFloat8Version = 22400, kFloat8Capability = 90;

// Narrow floating-point format: the number of fraction bits, and the minimum and maximum exponent of normal numbers.
struct Format {
  int fraction, least, greatest;
  double largest;
};
const Format* format_of(Element e) {
  static constexpr Format half{10, -14, 15, 65504.0}, brain{7, -126, 127, 0x1.fep127}, e4m3{3, -6, 8, 448.0}, e5m2{2, -14, 15, 57344.0};
  switch (e) {
    case Element::float16: return &half;
    case Element::bfloat16: return &brain;
    case Element::float8_e4m3: return &e4m3;
    case Element::float8_e5m2: return &e5m2;
    default: return nullptr;
  }
}

bool representable(const Format& f, double value) {
  if (!std::isfinite(value) || std::fabs(value) > f.largest) return false;
  if (value == 0) return true;
  const int exponent = std::max(std::ilogb(value), f.least);
  const double last_place = std::ldexp(1.0, exponent - f.fraction);
  return std::fmod(value, last_place) == 0;
}

bool power_of_two(double value) {
  int exponent = 0;
  return value > 0 && std::isfinite(value) && std::frexp(value, &exponent) == 0.5;
}

bool is_float8(Element e) { return e == Element::float8_e4m3 || e == Element::float8_e5m2; }
bool is_floating(Element e) {
  return e == Element::float16 || e == Element::float32 || e == Element::float64 || e == Element::bfloat16 || is_float8(e);
}

const char* name_of(Element e) {
  constexpr const char* names[] = {"int8",    "uint8",   "int16",    "uint16", "int32",         "int64",       "float16",
                                   "float32", "float64", "bfloat16", "bool",   "float8_e4m3fn", "float8_e5m2", "this type"};
  return names[static_cast<size_t>(e)];
}

bool type_of(Element e, Type* out) {
  switch (e) {
    case Element::int8: *out = Type::int8; return true;
    case Element::uint8:
    case Element::boolean: *out = Type::uint8; return true;
    case Element::int32: *out = Type::int32; return true;
    case Element::int64: *out = Type::int64; return true;
    case Element::float16: *out = Type::float16; return true;
    case Element::float32: *out = Type::float32; return true;
    case Element::float64: *out = Type::float64; return true;
    case Element::bfloat16: *out = Type::bfloat16; return true;
    case Element::float8_e4m3: *out = Type::float8_e4m3; return true;
    case Element::float8_e5m2: *out = Type::float8_e5m2; return true;
    case Element::int16:
    case Element::uint16:
    case Element::other: break;
  }
  return false;
}

Reduction refused(std::string why) {
  Reduction r;
  r.why_not = std::move(why);
  return r;
}

// Bools are bytes 0 and 1, so a logical or is the maximum, and a logical and is the minimum.
Reduction logical(const Question& q) {
  if (q.op == ReduceOp::average) return refused("NCCL has no average of bool");
  if (q.prescale != 1.0 || q.postscale != 1.0) return refused("bool takes no scale factors");
  Reduction r;
  r.type = Type::uint8;
  r.op = q.op == ReduceOp::min || q.op == ReduceOp::product ? Op::min : Op::max;
  return r;
}

// Choose how a sum of floats is scaled: before or after the reduction, or by NCCL. The results are equal up to rounding.
void float_sum(const Question& q, Reduction* r) {
  const int64_t divisor = q.op == ReduceOp::average ? q.size : 1;
  const double all = q.prescale * q.postscale / static_cast<double>(divisor);
  const Scaling after{q.postscale, divisor};
  const Format* format = format_of(q.element);
  // Types with a small range, such as float16, are scaled before the sum, which would otherwise overflow easily.
  const bool narrow_range = q.element == Element::float16 || is_float8(q.element);
  r->op = Op::sum;
  if (q.prescale == 1.0 && after.identity()) return;
  // With one rank, NCCL only copies. For fp8, it returns an error unless the operation is a sum.
  if (q.size == 1) {
    r->before = {q.prescale, 1};
    r->after = after;
    return;
  }
  if (q.scaled_afterwards && !narrow_range) {
    r->after = {q.prescale * q.postscale, divisor};
    return;
  }
  const bool exact = !format || (power_of_two(all) && representable(*format, all));
  if (exact && divisor != 1 && q.prescale * q.postscale == 1.0) {
    // Use NCCL's average. A premultiplied sum would give the same result, but NCCL would have to create an operation
    // for it.
    r->op = Op::average;
  } else if (exact) {
    r->premultiplied = true;
    r->scalar = all;
  } else if (narrow_range && std::fabs(all) < 1) {
    // Scale the inputs before the sum. Each value is rounded once, and the rounding errors have no common direction.
    r->before = {q.prescale * q.postscale, divisor};
  } else {
    r->after = after;
    if (q.prescale != 1.0 && representable(*format, q.prescale)) {
      // Let NCCL multiply by the factor: each product is rounded once, as on the host.
      r->premultiplied = true;
      r->scalar = q.prescale;
    } else {
      r->before = {q.prescale, 1};
    }
  }
}

}  // namespace

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::uint8: return Element::uint8;
    case DType::int8: return Element::int8;
    case DType::uint16: return Element::uint16;
    case DType::int16: return Element::int16;
    case DType::int32: return Element::int32;
    case DType::int64: return Element::int64;
    case DType::float16: return Element::float16;
    case DType::float32: return Element::float32;
    case DType::float64: return Element::float64;
    case DType::boolean: return Element::boolean;
    case DType::bfloat16: return Element::bfloat16;
    default: return Element::other;
  }
}

Reduction decide(const Question& q) {
  Reduction r;
  if (q.op == ReduceOp::adasum) return refused("NCCL has no Adasum");
  if (!type_of(q.element, &r.type)) return refused(std::string("NCCL does not reduce ") + name_of(q.element));
  if (q.element == Element::boolean) return logical(q);
  if (is_float8(q.element) && q.version < kFloat8Version) {
    return refused(std::string("NCCL ") + version_text(q.version) + " does not know " + name_of(q.element) + ", " +
                   version_text(kFloat8Version) + " does");
  }
  if (is_float8(q.element) && q.capability < kFloat8Capability) {
    return refused(std::string("NCCL reduces ") + name_of(q.element) + " on devices of compute capability 9.0 and later");
  }
  if (is_floating(q.element) && (q.op == ReduceOp::sum || q.op == ReduceOp::average)) {
    float_sum(q, &r);
    return r;
  }
  const bool sums = q.op == ReduceOp::sum || q.op == ReduceOp::average;
  if (sums && (q.op == ReduceOp::average || q.prescale != 1.0 || q.postscale != 1.0)) {
    return refused("sums of integers that are averaged or scaled wrap around in NCCL; the host carries them in more bits");
  }
  // Scaled integers are truncated, so the scaling before and the one after the reduction must not be combined.
  r.before = {q.prescale, 1};
  r.after = {q.postscale, 1};
  r.op = q.op == ReduceOp::min ? Op::min : q.op == ReduceOp::max ? Op::max : q.op == ReduceOp::product ? Op::product : Op::sum;
  return r;
}

size_t size_of(Type type) {
  constexpr size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[static_cast<size_t>(type)];
}

namespace {

template <class T>
void put(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Combine sign, exponent and fraction. The fraction is rounded to nearest, ties to even. The result saturates at the
// largest number.
uint8_t float8(const Format& f, double value) {
  const int width = f.fraction;
  const int bias = 1 - f.least;
  const double magnitude = std::min(std::fabs(value), f.largest);
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), f.least);
  // Compute the fraction in units of the last place. It is below 2^width for subnormal numbers. A carry into the
  // exponent gives the right result.
  const auto places = static_cast<int>(std::nearbyint(std::ldexp(magnitude, width - exponent)));
  return static_cast<uint8_t>(sign | (((exponent + bias - 1) << width) + places));
}

}  // namespace

void encode_scalar(Type type, double value, void* bytes) {
  switch (type) {
    case Type::int8: return put(bytes, static_cast<int8_t>(value));
    case Type::uint8: return put(bytes, static_cast<uint8_t>(value));
    case Type::int32: return put(bytes, static_cast<int32_t>(value));
    case Type::uint32: return put(bytes, static_cast<uint32_t>(value));
    case Type::int64: return put(bytes, static_cast<int64_t>(value));
    case Type::uint64: return put(bytes, static_cast<uint64_t>(value));
    case Type::float16: return put(bytes, float_to_half(static_cast<float>(value)));
    case Type::float32: return put(bytes, static_cast<float>(value));
    case Type::float64: return put(bytes, value);
    case Type::bfloat16: return put(bytes, float_to_bfloat16(static_cast<float>(value)));
    case Type::float8_e4m3: return put(bytes, float8(*format_of(Element::float8_e4m3), value));
    case Type::float8_e5m2: return put(bytes, float8(*format_of(Element::float8_e5m2), value));
  }
}

}  // namespace hvd::nccl
