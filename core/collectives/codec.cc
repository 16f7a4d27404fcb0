#include "collectives/codec.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "collectives/reduce.h"

namespace hvd {

namespace {

constexpr uint32_t kInfinity = 0x7f800000;
// Lower bound for a block's largest magnitude. The inverse of the scale of smaller values would overflow to infinity.
constexpr float kLeastMagnitude = 0x1p-100f;
// Bits to clear in a scale, which leaves a significand of 17 bits. Its product with an encoded value of 7 bits is then exact in float32 (24
// bits). Clearing them also keeps 127 * scale below the largest float.
constexpr uint32_t kCut = 0x7f;

float scale_for(uint32_t magnitude) {
  if (magnitude >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  const float largest = std::max(std::bit_cast<float>(magnitude), kLeastMagnitude);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(largest / 127.0f) & ~kCut);
}

std::byte* encode_block(std::byte* to, const float* from, size_t n) {
  const uint32_t largest = magnitude(from, n);
  const float scale = scale_for(largest);
  std::memcpy(to, &scale, sizeof scale);
  to += sizeof scale;
  if (largest >= kInfinity) {
    std::memset(to, 0, n);
  } else {
    quantize(reinterpret_cast<int8_t*>(to), from, n, 1.0f / scale);
  }
  return to + n;
}

const std::byte* decode_block(float* to, const std::byte* from, size_t n) {
  float scale;
  std::memcpy(&scale, from, sizeof scale);
  from += sizeof scale;
  dequantize(to, reinterpret_cast<const int8_t*>(from), n, scale);
  return from + n;
}

DType half_of(WireFormat f) { return f == WireFormat::bf16 ? DType::bfloat16 : DType::float16; }

}  // namespace

void encode_floats(WireFormat f, std::byte* to, const float* from, size_t count) {
  switch (f) {
    case WireFormat::none: std::memcpy(to, from, count * sizeof(float)); return;
    case WireFormat::int8:
      for (size_t i = 0; i < count; i += kCodeBlock) to = encode_block(to, from + i, std::min(kCodeBlock, count - i));
      return;
    default: narrow(half_of(f), to, from, count);
  }
}

void decode_floats(WireFormat f, float* to, const std::byte* from, size_t count) {
  switch (f) {
    case WireFormat::none: std::memcpy(to, from, count * sizeof(float)); return;
    case WireFormat::int8:
      for (size_t i = 0; i < count; i += kCodeBlock) from = decode_block(to + i, from, std::min(kCodeBlock, count - i));
      return;
    default: widen(half_of(f), to, from, count);
  }
}

void load_contribution(const CodedRun& run, size_t first, size_t n, float* to) {
  if (run.in) {
    std::memcpy(to, run.in + first * sizeof(float), n * sizeof(float));
  } else {
    std::fill_n(to, n, 0.0f);
  }
  if (!run.residual) return;
  alignas(64) float carried[kCodedStep];
  std::memcpy(carried, run.residual + first * sizeof(float), n * sizeof(float));
  for (size_t i = 0; i < n; ++i) to[i] += carried[i];
}

}  // namespace hvd
