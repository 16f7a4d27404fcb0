#include "collectives/exact_sum.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "elements.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Converts every value to words, adds the words, and converts back, as ranks do.
template <class T>
T through_words(DType d, const std::vector<T>& values, double before, const Scale& after) {
  std::vector<int64_t> sum(words_of(d));
  for (const T& value : values) {
    std::vector<int64_t> words(words_of(d));
    to_words(d, words.data(), reinterpret_cast<const std::byte*>(&value), 1, before);
    for (size_t i = 0; i < words.size(); ++i) sum[i] += words[i];
  }
  T result;
  from_words(d, reinterpret_cast<std::byte*>(&result), sum.data(), 1, after);
  return result;
}

template <class T>
void averages_fit(DType d) {
  using Limits = std::numeric_limits<T>;
  CAPTURE(name_of(d));
  for (const int n : {2, 3, 17, 1000}) {
    const auto count = static_cast<size_t>(n);
    for (const T v : {Limits::max(), Limits::min(), T{0}, T{100}}) CHECK(through_words(d, std::vector<T>(count, v), 1, {1, n}) == v);
    std::vector<T> mixed(count, Limits::max());
    mixed[0] = static_cast<T>(Limits::max() - 1);
    CHECK(through_words(d, mixed, 1, {1, n}) == Limits::max() - 1);
  }
}

}  // namespace

TEST_CASE("averages of integers do not wrap around") {
  averages_fit<uint8_t>(DType::uint8);
  averages_fit<int8_t>(DType::int8);
  averages_fit<uint16_t>(DType::uint16);
  averages_fit<int16_t>(DType::int16);
  averages_fit<int32_t>(DType::int32);
  averages_fit<int64_t>(DType::int64);
}

TEST_CASE("what is behind the point is cut off towards zero, before and after the sum") {
  CHECK(through_words<int32_t>(DType::int32, {1, 2}, 1, {1, 2}) == 1);
  CHECK(through_words<int32_t>(DType::int32, {-1, -2}, 1, {1, 2}) == -1);
  CHECK(through_words<int64_t>(DType::int64, {-1, -2}, 1, {1, 2}) == -1);
  CHECK(through_words<uint8_t>(DType::uint8, {3, 5}, 0.5, {1, 1}) == 3);
  CHECK(through_words<int32_t>(DType::int32, {7, 7, 7}, 1, {1.0 / 3, 1}) == 7);
}

TEST_CASE("factors: what fits after both of them is right, and the rest is clamped") {
  CHECK(through_words<int8_t>(DType::int8, {100, 100}, 4, {0.125, 1}) == 100);
  CHECK(through_words<int32_t>(DType::int32, {2'000'000'000, 2'000'000'000}, 1e6, {0.5e-6, 1}) == 2'000'000'000);
  CHECK(through_words<int8_t>(DType::int8, {100, 100}, 1, {2, 1}) == 127);
  CHECK(through_words<int8_t>(DType::int8, {-100, -100}, 1, {2, 1}) == -128);
  CHECK(through_words<uint8_t>(DType::uint8, {3}, -1, {1, 1}) == 0);
  const int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  CHECK(through_words<int64_t>(DType::int64, {most, most}, 1, {1e300, 1}) == most);
  CHECK(through_words<int64_t>(DType::int64, {least, least}, 1, {std::numeric_limits<double>::infinity(), 1}) == least);
  CHECK(through_words<int64_t>(DType::int64, {most, most}, 1, {1e-300, 1}) == 0);
}

TEST_CASE("int64 keeps the bits beyond those of a double") {
  const int64_t big = (int64_t{1} << 62) + 1;
  CHECK(through_words<int64_t>(DType::int64, {big, big}, 1, {0.5, 1}) == big);
  CHECK(through_words<int64_t>(DType::int64, {big, big, big}, 1, {1, 3}) == big);
  CHECK(through_words<int64_t>(DType::int64, {(int64_t{1} << 60) + 1}, 3, {1, 1}) == 3 * ((int64_t{1} << 60) + 1));
  CHECK(through_words<int64_t>(DType::int64, {-big, -big}, 1, {-0.5, 1}) == big);
  CHECK(through_words<int64_t>(DType::int64, {big, big, big}, 1, {1.0 / 3, 1}) == big);
  CHECK(through_words<int64_t>(DType::int64, {big, big, big}, 1, {-1.0 / 7, 1}) == -1976436865040309102);
  CHECK(through_words<int64_t>(DType::int64, {std::numeric_limits<int64_t>::min()}, 1, {-1, 1}) == std::numeric_limits<int64_t>::max());
  CHECK(through_words<int64_t>(DType::int64, {big}, 0.75, {1, 1}) == 3 * (big >> 2));
}
