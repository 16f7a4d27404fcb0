// float16 (IEEE 754 binary16) and bfloat16 <-> float32, one value at a time and without hardware support. The array kernels have
// vector versions of the same functions with the same bits (collectives/kernels_impl.h); this header is for everything else.
//
// Narrowing rounds to nearest, ties to even; overflow gives infinity; denormals are kept; a NaN stays a NaN, is made quiet and keeps
// the upper bits of its payload, as F16C does.
#pragma once
#include <bit>
#include <cstdint>

namespace hvd {

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7fff;
  if (magnitude < 0x0400) {  // zero or denormal: a multiple of 2^-24, exact in float32
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
  }
  uint32_t bits = (magnitude << 13) + (112u << 23);        // the exponent's bias goes from 15 to 127
  if (magnitude >= 0x7c00) bits += 112u << 23;             // infinity and NaN: the exponent is all ones
  if (magnitude > 0x7c00) bits |= 0x00400000;              // quiet
  return std::bit_cast<float>(sign | bits);
}

inline uint16_t float_to_half(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t h;
  if (magnitude > 0x7f800000) {
    h = 0x7e00 | ((magnitude >> 13) & 0x03ff);
  } else if (magnitude >= 0x47800000) {  // 2^16 and above, infinity included
    h = 0x7c00;
  } else if (magnitude < 0x38800000) {
    // Below 2^-14 the result is a multiple of 2^-24, which is the last place of float32 at 0.5: let the addition round.
    h = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  } else {
    h = (magnitude - (112u << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;  // a carry may reach the exponent; that is right
  }
  return static_cast<uint16_t>(sign | h);
}

inline float bfloat16_to_float(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

inline uint16_t float_to_bfloat16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x0040);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace hvd
