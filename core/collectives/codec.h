// float32 values in a smaller form, for the wire.
//
// fp16, bf16: each value rounded to nearest, ties to even. float16 overflows to infinity above 65504 (a gradient scaler relies on it).
//
// int8: blocks of kCodeBlock values (the last may be shorter): a float32 scale, then a signed byte for each value, which stands for
// byte * scale. The scale is the block's largest magnitude / 127, its significand cut to 17 bits so that the product is exact; the
// bytes are rounded to nearest, ties to even. So a value is off by at most half the scale: 1/254 of the block's largest, and a bit
// for the cut. A block with an infinity or a NaN comes back as NaN altogether, never as numbers that look sound. Scales end at
// 2^-107: what is smaller than 2^-108 becomes zero.
// Source of quantisation by blocks: D. Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding",
// NIPS 2017 (there with random rounding; here it has to be the same in every run).
#pragma once
#include <cstddef>

#include "base/dtype.h"

namespace hvd {

inline constexpr size_t kCodeBlock = 256;

// Where coded data may be cut: a multiple of so many values from the first.
constexpr size_t code_unit(WireFormat f) { return f == WireFormat::int8 ? kCodeBlock : 32; }

// Bytes of `count` coded values.
constexpr size_t coded_bytes(WireFormat f, size_t count) {
  switch (f) {
    case WireFormat::none: return count * sizeof(float);
    case WireFormat::int8: return count + (count + kCodeBlock - 1) / kCodeBlock * sizeof(float);
    default: return count * 2;
  }
}

// The memory of the values is aligned for float; that of the coded ones need not be aligned. The same bits on every CPU.
void encode_floats(WireFormat, std::byte* to, const float* from, size_t count);
void decode_floats(WireFormat, float* to, const std::byte* from, size_t count);

}  // namespace hvd
