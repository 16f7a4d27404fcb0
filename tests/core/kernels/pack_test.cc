// pack_bytes, pack_<dtype> and casts: many pieces in one launch, compared with memcpy and the CPU's scale,
// widen and narrow.
#include <doctest/doctest.h>

#include "placed.h"

using namespace hvd;
using namespace hvd::testing;
using kernels::Move;

namespace {

struct Piece {
  Placed source, destination;
  size_t elements;
  bool zeros;
};

struct Side {
  size_t bytes;  // of an element
  size_t shift;  // largest distance of pieces from a 16-byte boundary
};

// Pieces of random sizes, a few of them large, empty or without a source. elements(i) returns those of piece
// i.
std::vector<Piece> pieces(size_t count, Side in, Side out, std::mt19937_64& random, auto data) {
  std::vector<Piece> all;
  for (size_t i = 0; i < count; ++i) {
    const size_t n = i % 41 == 7 ? 0 : i % 50 == 3 ? 20000 + random() % 5000 : random() % 300;
    Placed source(data(n), random() % (in.shift + 1)), destination(n * out.bytes, random() % (out.shift + 1));
    all.push_back({std::move(source), std::move(destination), n, i % 13 == 5});
  }
  return all;
}

void run(size_t kernel, std::vector<Piece>& all, size_t element_bytes, const kernels::Scaling& scaling, uint32_t threads = 64) {
  std::vector<Move> moves;
  for (Piece& piece : all) moves.push_back({piece.zeros ? 0 : piece.source.address(), piece.destination.address(), piece.elements});
  std::span<const Move> left = moves;
  while (!left.empty()) {
    kernels::PackParameters p{};
    const size_t filled = kernels::fill(&p, left, element_bytes, 3);
    REQUIRE(filled == std::min<size_t>(left.size(), kernels::kMostPieces));
    p.scaling = scaling;
    launch(kernel, {kernels::geometry(p).blocks, threads}, p);
    left = left.subspan(filled);
  }
}

}  // namespace

TEST_CASE("bytes are packed and unpacked as they are, whatever the alignment") {
  std::mt19937_64 random(1);
  for (size_t shift : {0, 1, 15}) {
    for (size_t count : {1, 2, 37, 512, 700}) {
      auto data = [&random](size_t n) { return awkward(DType::uint8, n, random()); };
      std::vector<Piece> all = pieces(count, {1, shift}, {1, shift}, random, data);
      run(kernels::pack_bytes_of(), all, 1, {});
      for (Piece& piece : all) {
        const std::vector<std::byte> expected = piece.zeros ? std::vector<std::byte>(piece.elements) : piece.source.copy();
        CHECK(piece.destination.copy() == expected);
        CHECK(piece.destination.guards_stand());
      }
    }
  }
}

TEST_CASE("packing scales with the CPU's bits") {
  std::mt19937_64 random(2);
  for (DType d : kEveryDType) {
    for (const Factor& factor : kFactors) {
      const size_t shift = (&factor - kFactors) % 2 ? 15 : 0;
      INFO(name_of(d) << " " << factor.factor << "/" << factor.divisor << " shift " << shift);
      auto data = [&random, d](size_t n) { return awkward(d, n, random()); };
      std::vector<Piece> all = pieces(60, {size_of(d), shift}, {size_of(d), shift}, random, data);
      run(kernels::pack_of(d), all, size_of(d), kernels::scaling_of(factor.factor, factor.divisor));
      for (Piece& piece : all) {
        std::vector<std::byte> expected(piece.elements * size_of(d));
        if (!piece.zeros) scale(d, expected.data(), piece.source.data(), piece.elements, {factor.factor, factor.divisor});
        CHECK(first_difference(d, piece.destination.data(), expected.data(), piece.elements) == piece.elements);
        CHECK(piece.destination.guards_stand());
      }
    }
  }
}

TEST_CASE("packing casts between float32 and 16-bit floats: scaled in float32, rounded once") {
  std::mt19937_64 random(3);
  for (DType half : {DType::float16, DType::bfloat16}) {
    for (bool narrows : {true, false}) {
      const DType from = narrows ? DType::float32 : half, to = narrows ? half : DType::float32;
      for (size_t shift : {0, 15}) {
        for (const Factor& factor : kFactors) {
          INFO(name_of(from) << " to " << name_of(to) << " " << factor.factor << "/" << factor.divisor << " shift " << shift);
          auto data = [&random, from](size_t n) { return awkward(from, n, random()); };
          std::vector<Piece> all = pieces(60, {size_of(from), shift}, {size_of(to), shift}, random, data);
          run(kernels::pack_of(from, to).value(), all, 4, kernels::scaling_of(factor.factor, factor.divisor));
          for (Piece& piece : all) {
            std::vector<float> wide(piece.elements);
            std::vector<std::byte> expected(piece.elements * size_of(to));
            auto* bytes = reinterpret_cast<std::byte*>(wide.data());
            if (!piece.zeros && piece.elements > 0) {
              if (narrows) {
                memcpy(bytes, piece.source.data(), piece.source.size());
              } else {
                widen(half, wide.data(), piece.source.data(), piece.elements);
              }
              scale(DType::float32, bytes, bytes, piece.elements, {factor.factor, factor.divisor});
              if (narrows) {
                narrow(half, expected.data(), wide.data(), piece.elements);
              } else {
                memcpy(expected.data(), bytes, expected.size());
              }
            }
            CHECK(first_difference(to, piece.destination.data(), expected.data(), piece.elements) == piece.elements);
            CHECK(piece.destination.guards_stand());
          }
        }
      }
    }
  }
}

TEST_CASE("every 16-bit float becomes the CPU's float32, and every rounding back is the CPU's") {
  constexpr size_t kAll = 1 << 16;
  for (DType half : {DType::float16, DType::bfloat16}) {
    Placed halves(2 * kAll, 0), floats(4 * kAll, 0);
    for (size_t i = 0; i < kAll; ++i) memcpy(halves.data() + 2 * i, &i, 2);
    kernels::PackParameters p{};
    const Move there{halves.address(), floats.address(), kAll};
    kernels::fill(&p, {&there, 1}, 4, 8);
    launch(*kernels::pack_of(half, DType::float32), kernels::geometry(p), p);
    std::vector<float> wide(kAll);
    widen(half, wide.data(), halves.data(), kAll);
    CHECK(first_difference(DType::float32, floats.data(), reinterpret_cast<std::byte*>(wide.data()), kAll) == kAll);
    // Around each value and around the midpoints between neighbours.
    const Move back{floats.address(), halves.address(), kAll};
    kernels::fill(&p, {&back, 1}, 4, 8);
    for (uint32_t offset : {0x0u, 0x1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      std::vector<float> near(kAll);
      for (size_t i = 0; i < kAll; ++i) near[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(wide[i]) + offset);
      memcpy(floats.data(), near.data(), 4 * kAll);
      launch(*kernels::pack_of(DType::float32, half), kernels::geometry(p), p);
      std::vector<std::byte> expected(2 * kAll);
      narrow(half, expected.data(), near.data(), kAll);
      CHECK(first_difference(half, halves.data(), expected.data(), kAll) == kAll);
    }
  }
}
