// Conversions between float32 and float16 (IEEE 754 binary16) or bfloat16, one value at a time and without hardware
// support. The array kernels have vector versions with bitwise identical results (collectives/kernels_impl.h). All
// other code uses this header, including device code (core/kernels). The functions select between cases instead of
// branching, because a GPU warp would execute all branches.
//
// Narrowing rounds to nearest, ties to even. Overflow gives infinity, and denormals are kept. A NaN becomes quiet and
// keeps the upper bits of its payload, as with F16C.
#pragma once
#include <bit>
#include <cstdint>

#if defined(__CUDACC__)
#define HVD_ON_DEVICE __device__
#else
#define HVD_ON_DEVICE
#endif

namespace hvd {

HVD_ON_DEVICE constexpr float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7fff;
  // Convert zero and denormals, which are multiples of 2^-24, like a float32 near 0.5.
  const uint32_t tiny = std::bit_cast<uint32_t>(std::bit_cast<float>(0x3f000000 | magnitude) - 0.5f);
  // Change the exponent bias from 15 to 127.
  uint32_t bits = (magnitude << 13) + (112u << 23);
  // Set all exponent bits for infinity and NaN.
  bits += magnitude >= 0x7c00 ? 112u << 23 : 0;
  // Convert a signaling NaN to a quiet NaN.
  bits |= magnitude > 0x7c00 ? 0x00400000 : 0;
  return std::bit_cast<float>(sign | (magnitude < 0x0400 ? tiny : bits));
}

HVD_ON_DEVICE constexpr uint16_t float_to_half(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Round values below 2^-14 to multiples of 2^-24 by adding 0.5: a float32 near 0.5 is a multiple of 2^-24.
  const uint32_t tiny = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  // A rounding carry from the fraction into the exponent gives the correct result.
  uint32_t h = (magnitude - (112u << 23) + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
  h = magnitude < 0x38800000 ? tiny : h;
  // Values of 2^16 and above become infinity.
  h = magnitude >= 0x47800000 ? 0x7c00 : h;
  h = magnitude > 0x7f800000 ? 0x7e00 | ((magnitude >> 13) & 0x03ff) : h;
  return static_cast<uint16_t>(sign | h);
}

HVD_ON_DEVICE constexpr float bfloat16_to_float(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

HVD_ON_DEVICE constexpr uint16_t float_to_bfloat16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x0040 : rounded);
}

}  // namespace hvd
