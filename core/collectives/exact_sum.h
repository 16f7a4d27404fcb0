// Sums of integers that are averaged or scaled. Values are widened to 64-bit words, so neither summing nor scaling
// overflows: the result fits the type whenever the exact result does. All execution paths of the engine use these
// functions, so their results are bitwise identical.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "collectives/comm.h"

namespace hvd {

constexpr bool is_integer(DType d) { return !is_float(d) && d != DType::boolean; }

// Return the number of words per element: two for an int64 (its upper and lower 32 bits), one for other types. Sums of these words do not
// overflow with up to 2^31 ranks.
constexpr size_t words_of(DType d) { return d == DType::int64 ? 2 : 1; }

// Compute words = src * factor elementwise, truncated towards zero; `d` is an integer type.
void to_words(DType d, int64_t* words, const std::byte* src, size_t n, double factor);

// Compute dst = sum * scale.factor / scale.divisor elementwise, truncated towards zero and clamped to the range of `d`. Without a factor,
// or with a factor 1/n for an integer n, the result is exact even for sums beyond 2^53. With other factors, it has double precision.
void from_words(DType d, std::byte* dst, const int64_t* words, size_t n, const Scale& scale);

}  // namespace hvd
