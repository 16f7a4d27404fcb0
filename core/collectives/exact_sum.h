// Sums of integers that are averaged or scaled. They are carried in words of 64 bits, so that neither the sum nor a factor wraps around:
// the result fits the type whenever the average does. Every path of the engine uses these functions, so all give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "collectives/comm.h"

namespace hvd {

constexpr bool is_integer(DType d) { return !is_float(d) && d != DType::boolean; }

// Words that carry one element. An int64 has two, its upper and its lower 32 bits: their sums fit for up to 2^31 ranks.
constexpr size_t words_of(DType d) { return d == DType::int64 ? 2 : 1; }

// words = src * factor, truncated towards zero, elementwise; `d` is an integer type.
void to_words(DType d, int64_t* words, const std::byte* src, size_t n, double factor);

// dst = sum * scale.factor / scale.divisor, truncated towards zero and clamped to the range of `d`. Exact without a factor, with one over
// an integer, and for sums beyond 2^53, of which double precision would lose bits; else in double precision.
void from_words(DType d, std::byte* dst, const int64_t* words, size_t n, const Scale& scale);

}  // namespace hvd
