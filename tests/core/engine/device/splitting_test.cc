// How tensors on devices are split and packed.
#include "engine/device/splitting.h"

#include <doctest/doctest.h>

#include <numeric>
#include <random>

using namespace hvd;

TEST_CASE("pieces cover each tensor once, in order, and lie apart in loads of limited size") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const size_t most = 64 * (1 + random() % 20);
    std::vector<size_t> tensors(1 + random() % 8);
    for (size_t& bytes : tensors) bytes = random() % 3 ? random() % 300 : random() % 5000;
    std::vector<size_t> covered(tensors.size()), numbers(tensors.size());
    size_t last = 0;
    for (const Load& load : cut(tensors, most)) {
      CHECK(load.bytes <= most);
      size_t end = 0;
      for (const Piece& p : load.pieces) {
        CHECK(p.tensor >= last);
        last = p.tensor;
        CHECK(p.number == numbers[p.tensor]++);
        CHECK(p.first == covered[p.tensor]);
        covered[p.tensor] += p.bytes;
        CHECK(p.at >= end);
        CHECK(p.at % 64 == 0);
        end = p.at + p.bytes;
      }
      CHECK(end <= load.bytes);
    }
    CHECK(covered == tensors);
    for (size_t n : numbers) CHECK(n > 0);
  }
}

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

TEST_CASE("every element is covered once, in parts of equal length that begin where kernels like it") {
  for (size_t element : {1, 2, 4, 8}) {
    for (size_t members : {1, 2, 3, 8}) {
      for (size_t total : {1, 7, 255, 256, 257, 4096, 100000, 3000001}) {
        CAPTURE(element);
        CAPTURE(members);
        CAPTURE(total);
        const auto plan = plan_parts(total, members, element, 64 << 10);
        REQUIRE(!plan.empty());
        size_t reached = 0;
        for (const PartPlan& p : plan) {
          CHECK(p.first == reached);
          CHECK(p.part > 0);
          CHECK(p.part * element % 256 == 0);
          CHECK(p.part * element <= 64 << 10);
          CHECK(reached < total);
          reached += p.part * members;
        }
        CHECK(reached >= total);
        CHECK(reached - total < members * 256 / element + members);
      }
    }
  }
}

TEST_CASE("nothing is cut into nothing") { CHECK(plan_parts(0, 2, 4, 1024).empty()); }

TEST_CASE("many small tensors are packed one behind the other, large ones and few are not") {
  const std::vector<size_t> bytes{4, 0, 1 << 20, 300, 256, 7};
  const Packing p = plan_packing(bytes, true);
  CHECK(p.packed == std::vector<size_t>{0, 1, 3, 4, 5});
  CHECK(p.apart == std::vector<size_t>{2});
  CHECK(p.offsets == std::vector<size_t>{0, 256, 256, 768, 1024});
  CHECK(p.bytes == 1280);
  for (const Packing& none : {plan_packing(bytes, false), plan_packing(std::vector<size_t>{4, 4, 4}, true)}) {
    CHECK(none.packed.empty());
    CHECK(none.bytes == 0);
  }
  CHECK(plan_packing(bytes, false).apart.size() == 6);
  CHECK(plan_packing(std::vector<size_t>(5, 0), true).bytes == 0);
}

TEST_CASE("the buffer has a limit; what is beyond it stays where it is") {
  const std::vector<size_t> bytes(1000, 256 << 10);
  const Packing p = plan_packing(bytes, true);
  CHECK(p.bytes <= size_t{64} << 20);
  CHECK(p.packed.size() == 256);
  CHECK(p.packed.size() + p.apart.size() == 1000);
}
