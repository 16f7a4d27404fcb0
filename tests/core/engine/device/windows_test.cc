#include <doctest/doctest.h>

#include <numeric>
#include <random>

#include "engine/device/splitting.h"

using namespace hvd;

TEST_CASE("windows hold every element once, in order, at aligned places and within their size") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const size_t element = size_t{1} << random() % 4, bytes = 256 * (1 + random() % 8);
    std::vector<size_t> elements(random() % 6);
    for (size_t& n : elements) n = random() % 3 == 0 ? 0 : random() % 3000;
    std::vector<size_t> seen(elements.size());
    for (const Window& window : windows_of(elements, element, bytes)) {
      REQUIRE_FALSE(window.parts.empty());
      CHECK(window.bytes <= bytes);
      size_t end = 0;
      for (const Window::Part& part : window.parts) {
        CHECK(part.count > 0);
        CHECK(part.first == seen[part.tensor]);
        CHECK(part.at % 256 == 0);
        CHECK(part.at >= end);
        end = part.at + part.count * element;
        seen[part.tensor] += part.count;
      }
      CHECK(end == window.bytes);
    }
    CHECK(seen == elements);
  }
}

TEST_CASE("of each window every element is reduced by one rank: on one device by another one each time, on several by slices") {
  const Uuid a{1}, b{2};
  CHECK(sharing_of(std::vector{a, a, a}) == Sharing::by_turns);
  CHECK(sharing_of(std::vector{a, b}) == Sharing::by_slices);
  CHECK(sharing_of(std::vector{a, a, b, b}) == Sharing::by_slices);
  for (const Sharing sharing : {Sharing::by_turns, Sharing::by_slices}) {
    for (const int size : {1, 2, 3, 7}) {
      for (const size_t elements : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{100001}}) {
        std::vector<int> workers;
        for (uint64_t window = 0; window < 8; ++window) {
          size_t next = 0;
          for (int rank = 0; rank < size; ++rank) {
            const kernels::Slice s = reduced_by(sharing, rank, size, window, elements, 4);
            if (s.begin >= s.end) continue;
            CHECK(s.begin == next);
            next = s.end;
            workers.push_back(rank);
          }
          CHECK(next == elements);
        }
        if (sharing == Sharing::by_turns && elements > 0) {
          for (size_t window = 0; window < workers.size(); ++window) CHECK(workers[window] == static_cast<int>(window) % size);
        }
      }
    }
  }
}
