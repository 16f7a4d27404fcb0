#include "collectives/comm.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <numeric>

#include "collectives/flow.h"

using namespace hvd;

TEST_CASE("scratch is aligned, grows only, and keeps its slots apart") {
  Scratch scratch;
  std::byte* a = scratch.get(3, 100);
  CHECK(reinterpret_cast<uintptr_t>(a) % 64 == 0);
  CHECK(scratch.get(3, 10) == a);
  std::byte* b = scratch.get(20, 10'000);
  CHECK(scratch.held() == 128 + 10'048);
  std::memset(b, 7, 10'000);
  CHECK(scratch.get(3, 100) == a);
  CHECK(reinterpret_cast<uintptr_t>(scratch.get(3, 5000)) % 64 == 0);
  CHECK(b[9999] == std::byte{7});
  CHECK(scratch.get(5, 0) != nullptr);
}

TEST_CASE("gather and scatter walk over the pieces; null inputs are zeros, null outputs are dropped") {
  std::vector<int32_t> a = {1, 2, 3}, c = {7, 8}, out_a(3), out_b(4), out_c(2);
  auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
  const std::vector<Segments::Piece> pieces = {
      {bytes(a), bytes(out_a), 3}, {nullptr, bytes(out_b), 4}, {bytes(c), nullptr, 0}, {bytes(c), nullptr, 2}};
  const Segments s{pieces, 9};
  const std::vector<int32_t> whole = {1, 2, 3, 0, 0, 0, 0, 7, 8};
  for (size_t first = 0; first <= 9; ++first) {
    for (size_t count = 0; first + count <= 9; ++count) {
      std::vector<int32_t> got(count + 1, -1);
      s.gather(first, count, 4, bytes(got));
      CHECK(std::equal(got.begin(), got.end() - 1, whole.begin() + static_cast<long>(first)));
      CHECK(got.back() == -1);
    }
  }
  std::vector<int32_t> from(9);
  std::iota(from.begin(), from.end(), 100);
  for (size_t first = 0; first < 9; first += 2) s.scatter(first, std::min<size_t>(2, 9 - first), 4, bytes(from) + first * 4);
  CHECK(out_a == std::vector<int32_t>{100, 101, 102});
  CHECK(out_b == std::vector<int32_t>{103, 104, 105, 106});
  CHECK(c == std::vector<int32_t>{7, 8});
}
