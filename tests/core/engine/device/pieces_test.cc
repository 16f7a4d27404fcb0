#include <doctest/doctest.h>

#include <random>

#include "engine/device/splitting.h"

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

TEST_CASE("the pieces of a tensor do not depend on what is fused with it; small tensors share a load") {
  const auto of = [](std::vector<size_t> tensors, size_t tensor) {
    std::vector<std::pair<size_t, size_t>> pieces;
    for (const Load& load : cut(tensors, 128)) {
      for (const Piece& p : load.pieces) {
        if (p.tensor == tensor) pieces.emplace_back(p.first, p.bytes);
      }
    }
    return pieces;
  };
  CHECK(of({300}, 0) == of({4, 300, 17}, 1));
  CHECK(of({300}, 0) == std::vector<std::pair<size_t, size_t>>{{0, 128}, {128, 128}, {256, 44}});
  CHECK(cut(std::vector<size_t>{4, 0, 60}, 256).size() == 1);
}
