// reduce_<dtype> and scale_<dtype>, compared with the CPU's reduce_many and scale, bit for bit.
#include <doctest/doctest.h>

#include "placed.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product};

struct Case {
  DType dtype;
  ReduceOp op;
  size_t sources, begin, elements, behind;  // a slice of buffers of begin + elements + behind
  std::vector<size_t> shifts;  // of sources and destinations, alternating
  size_t destinations;  // the first source is one of them if `in_place`
  bool in_place;
  Factor factor;
  kernels::Geometry geometry;
};

std::string text(const Case& c) {
  return std::string(name_of(c.dtype)) + " " + std::string(name_of(c.op)) + " sources " + std::to_string(c.sources) + " begin " +
         std::to_string(c.begin) + " elements " + std::to_string(c.elements) + " factor " + std::to_string(c.factor.factor) + "/" +
         std::to_string(c.factor.divisor) + " shift " + std::to_string(c.shifts[0]) + " blocks " + std::to_string(c.geometry.blocks) +
         " threads " + std::to_string(c.geometry.threads);
}

void check(const Case& c, uint64_t seed) {
  INFO(text(c));
  const size_t bytes = size_of(c.dtype), all = c.begin + c.elements + c.behind;
  std::vector<Placed> sources, destinations;
  kernels::ReduceParameters p{};
  std::vector<const std::byte*> slices;
  for (size_t i = 0; i < c.sources; ++i) {
    sources.emplace_back(awkward(c.dtype, all, seed + i), c.shifts[i % c.shifts.size()]);
    p.sources[i] = sources[i].address();
    slices.push_back(sources[i].data() + c.begin * bytes);
  }
  const std::vector<std::byte> before = awkward(c.dtype, all, seed + 1000);
  for (size_t i = 0; i < c.destinations; ++i) {
    destinations.emplace_back(before, c.shifts[(c.sources + i) % c.shifts.size()]);
    p.destinations[i] = destinations[i].address();
  }
  p.destination_count = static_cast<uint32_t>(c.destinations);
  std::vector<std::byte> first = sources[0].copy();
  if (c.in_place) p.destinations[p.destination_count++] = sources[0].address();
  p.source_count = static_cast<uint32_t>(c.sources);
  p.begin = c.begin, p.end = c.begin + c.elements;
  p.op = *kernels::op_of(c.op);
  p.scaling = kernels::scaling_of(c.factor.factor, c.factor.divisor);

  std::vector<std::byte> expected = before;
  reduce_many(c.dtype, c.op, expected.data() + c.begin * bytes, slices, c.elements, {c.factor.factor, c.factor.divisor});
  launch(kernels::reduce_of(c.dtype), c.geometry, p);

  for (Placed& d : destinations) {
    CHECK(first_difference(c.dtype, d.data(), expected.data(), all) == all);
    CHECK(d.guards_stand());
  }
  if (c.in_place) {
    if (c.elements > 0) memcpy(first.data() + c.begin * bytes, expected.data() + c.begin * bytes, c.elements * bytes);
    CHECK(first_difference(c.dtype, sources[0].data(), first.data(), all) == all);
  }
  for (Placed& s : sources) CHECK(s.guards_stand());
}

}  // namespace

TEST_CASE("a reduction has the CPU's bits: every dtype, operation, number of sources and size") {
  uint64_t seed = 0;
  for (DType d : kEveryDType) {
    for (ReduceOp op : kOps) {
      for (size_t sources : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 31, 32, 33, 64}) {
        // All sizes with few sources, some with many: the tree does not depend on the size.
        for (size_t n = 0; n <= 67; n += sources < 10 ? 1 : 17) {
          const Factor factor = kFactors[n % std::size(kFactors)];
          check({d, op, sources, 0, n, 0, {0}, 1, false, factor, kernels::geometry(n, size_of(d), 2)}, ++seed);
        }
      }
    }
  }
}

TEST_CASE("a reduction may begin anywhere, be in place and have several destinations") {
  uint64_t seed = 100000;
  for (DType d : kEveryDType) {
    const size_t bytes = size_of(d);
    const std::vector<std::vector<size_t>> layouts = {{0}, {bytes % 16}, {8}, {0, bytes % 16}, {1}, {15, 0, 7}};
    for (const auto& shifts : layouts) {
      for (size_t sources : {2, 3, 8}) {
        for (size_t n : {1, 33, 300}) {
          const Factor factor = kFactors[++seed % std::size(kFactors)];
          const kernels::Geometry geometry{1 + static_cast<uint32_t>(seed % 3), 32};
          check({d, kOps[seed % 4], sources, seed % 19, n, seed % 5, shifts, 1 + seed % 3, true, factor, geometry}, seed);
        }
      }
    }
  }
}

TEST_CASE("scaling in place has the CPU's bits") {
  uint64_t seed = 300000;
  for (DType d : kEveryDType) {
    for (const Factor& factor : kFactors) {
      for (size_t shift : {size_t{0}, size_of(d) % 16, size_t{1}}) {
        for (size_t n : {0, 1, 2, 7, 8, 15, 16, 17, 31, 67, 5000}) {
          INFO(name_of(d) << " " << factor.factor << "/" << factor.divisor << " shift " << shift << " elements " << n);
          Placed data(awkward(d, n, ++seed), shift);
          std::vector<std::byte> expected = data.copy();
          scale(d, expected.data(), expected.data(), n, {factor.factor, factor.divisor});
          kernels::ScaleParameters p{data.address(), data.address(), n, kernels::scaling_of(factor.factor, factor.divisor)};
          launch(kernels::scale_of(d), kernels::geometry(n, size_of(d), 1), p);
          CHECK(first_difference(d, data.data(), expected.data(), n) == n);
          CHECK(data.guards_stand());
        }
      }
    }
  }
}
