#include "nccl/collectives.h"

#include <doctest/doctest.h>

#include "base/half.h"
#include "contains.h"
#include "ranks.h"

using namespace hvd;
using hvd::testing::as_ranks;
using hvd::testing::contains;
using hvd::testing::Knob;
using hvd::testing::Rank;
using hvd::testing::with_communicator;

namespace {

nccl::Reduction reduction(DType d, ReduceOp op, int size, double prescale = 1, double postscale = 1) {
  const nccl::Reduction r = nccl::decide(
      {.element = nccl::element_of(d), .op = op, .prescale = prescale, .postscale = postscale, .size = size, .version = 22809});
  REQUIRE(r.possible());
  return r;
}

// Small integers: exact in every dtype, in any order of additions.
template <class T>
std::vector<T> values(int rank, size_t count, int seed = 0) {
  std::vector<T> v(count);
  for (size_t i = 0; i < count; ++i) v[i] = static_cast<T>((static_cast<size_t>(rank * 3 + seed) + i) % 7 + 1);
  return v;
}

}  // namespace

// The random jobs of tests/core/engine/device cover other movements, and reductions in parts.
TEST_CASE("allgather of equal and unequal parts, in place and not") {
  with_communicator(3, [](Rank& r) {
    for (const bool equal : {true, false}) {
      for (const bool in_place : {true, false}) {
        std::vector<size_t> bytes;
        std::vector<uint8_t> expected;
        size_t own = 0;
        for (int i = 0; i < 3; ++i) {
          if (i == r.rank) own = expected.size();
          bytes.push_back(equal ? 10 : static_cast<size_t>(7 * ((i + 1) % 3)));
          const std::vector<uint8_t> part = values<uint8_t>(i, bytes.back());
          expected.insert(expected.end(), part.begin(), part.end());
        }
        const std::vector<uint8_t> part = values<uint8_t>(r.rank, bytes[static_cast<size_t>(r.rank)]);
        std::vector<uint8_t> before(expected.size());
        if (in_place) std::copy(part.begin(), part.end(), before.begin() + static_cast<ptrdiff_t>(own));
        uint8_t* out = r.device.upload(before);
        REQUIRE(nccl::allgather(*r.comm, r.device.stream, in_place ? out + own : r.device.upload(part), out, bytes).ok());
        REQUIRE(r.device.finish());
        CHECK(r.device.download(out, expected.size()) == expected);
      }
    }
  });
}

TEST_CASE("an error in the middle of a group leaves the thread outside of any group") {
  as_ranks(1, [](Rank& r) {
    r.comm = r.make(testing::new_id());
    REQUIRE(Rank::created(r.comm));
    float* data = r.device.upload(values<float>(0, 8));
    const nccl::Piece pieces[] = {{data, data, 4}, {data + 4, data + 4, 4}};
    const nccl::Reduction how = reduction(DType::float32, ReduceOp::sum, 1);
    {
      const Knob fail("fail", "AllReduce:2");
      const Status s = nccl::allreduce(*r.comm, r.device.stream, how, pieces);
      CHECK(contains(s.message(), "ncclAllReduce failed with NCCL error 3"));
      CHECK(contains(s.message(), "simulated failure"));
    }
    // In a group that is still open this would never reach the stream.
    const auto kernels = testing::exported<int()>(testing::kSimulatedNccl, "simnccl_kernels");
    CHECK(testing::simulated().group_end() == nccl::kInvalidUsage);
    const int before = kernels();
    REQUIRE(nccl::allreduce(*r.comm, r.device.stream, how, pieces).ok());
    CHECK(kernels() == before + 2);
    CHECK(r.device.finish());
    CHECK(r.destroy());
  });
}
