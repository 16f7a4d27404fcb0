// Compressed encodings of float32 values for the wire.
//
// fp16, bf16: each value is rounded to nearest, ties to even. float16 overflows to infinity above 65504 (gradient
// scalers rely on it).
//
// int8: blocks of kCodeBlock values (the last may be shorter). A block is a float32 scale, then one signed byte per
// value, which stands for byte * scale. The scale is the block's largest magnitude / 127, with its significand cut to
// 17 bits so that the product is exact. Bytes are rounded to nearest, ties to even, so the error of a value is at most
// half the scale: 1/254 of the block's largest magnitude, slightly more because of the cut. A block with an infinity or
// a NaN decodes to NaN throughout, so that it is never mistaken for valid numbers. Scales end at 2^-107: values below
// 2^-108 become zero.
// Source of blockwise quantisation: D. Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization
// and encoding", NIPS 2017 (with random rounding; here results must be reproducible).
#pragma once
#include <cstddef>

#include "base/dtype.h"

namespace hvd {

inline constexpr size_t kCodeBlock = 256;

// Return the granularity at which coded data may be split: a multiple of this many values from the first.
constexpr size_t code_unit(WireFormat f) { return f == WireFormat::int8 ? kCodeBlock : 32; }

// Return the bytes of `count` coded values.
constexpr size_t coded_bytes(WireFormat f, size_t count) {
  switch (f) {
    case WireFormat::none: return count * sizeof(float);
    case WireFormat::int8: return count + (count + kCodeBlock - 1) / kCodeBlock * sizeof(float);
    default: return count * 2;
  }
}

// Values must be aligned for float; coded data need no alignment. Every CPU produces the same bits.
void encode_floats(WireFormat, std::byte* to, const float* from, size_t count);
void decode_floats(WireFormat, float* to, const std::byte* from, size_t count);

}  // namespace hvd
