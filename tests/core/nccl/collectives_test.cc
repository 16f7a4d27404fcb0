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
        size_t mine = 0;
        for (int i = 0; i < 3; ++i) {
          if (i == r.rank) mine = expected.size();
          bytes.push_back(equal ? 10 : static_cast<size_t>(7 * ((i + 1) % 3)));
          const std::vector<uint8_t> part = values<uint8_t>(i, bytes.back());
          expected.insert(expected.end(), part.begin(), part.end());
        }
        const std::vector<uint8_t> part = values<uint8_t>(r.rank, bytes[static_cast<size_t>(r.rank)]);
        std::vector<uint8_t> before(expected.size());
        if (in_place) std::copy(part.begin(), part.end(), before.begin() + static_cast<ptrdiff_t>(mine));
        uint8_t* out = r.device.upload(before);
        REQUIRE(nccl::allgather(*r.comm, r.device.stream, in_place ? out + mine : r.device.upload(part), out, bytes).ok());
        REQUIRE(r.device.finish());
        CHECK(r.device.download(out, expected.size()) == expected);
      }
    }
  });
}

TEST_CASE("a gather of unequal parts among more ranks than a few goes by sends and receives") {
  // Ten ranks on four devices: NCCL sees each on its own host.
  const Knob hosts("hostid_rank", "1");
  constexpr int kRanks = 10;
  testing::simulated();
  const nccl::UniqueId id = testing::new_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      testing::Device device(rank % 4);
      auto c = nccl::Communicator::make(testing::simulated(), device.surroundings(), id, kRanks, rank);
      REQUIRE(Rank::made(c));
      std::vector<size_t> bytes;
      std::vector<uint8_t> expected;
      for (int i = 0; i < kRanks; ++i) {
        bytes.push_back(static_cast<size_t>(i % 4));
        expected.insert(expected.end(), bytes.back(), static_cast<uint8_t>(i));
      }
      const uint8_t* in = device.upload(std::vector<uint8_t>(static_cast<size_t>(rank % 4), static_cast<uint8_t>(rank)));
      auto* out = static_cast<uint8_t*>(device.allocate(expected.size()));
      REQUIRE(nccl::allgather(*c, device.stream, in, out, bytes).ok());
      REQUIRE(device.finish());
      CHECK(device.download(out, expected.size()) == expected);
      const auto ending = nccl::destroy(std::span(&c, 1), 60);
      ending->wait();
      CHECK(ending->outcome().ok());
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(std::string(simcuda_violations()) == "");
}

TEST_CASE("an error in the middle of a group leaves the thread outside of any group") {
  as_ranks(1, [](Rank& r) {
    r.comm = r.make(testing::new_id());
    REQUIRE(Rank::made(r.comm));
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

TEST_CASE("a premultiplied operation is released, also when its call fails") {
  with_communicator(2, [](Rank& r) {
    float* data = r.device.upload(values<float>(r.rank, 8));
    const nccl::Piece pieces[] = {{data, data, 8}};
    const nccl::Reduction how = reduction(DType::float32, ReduceOp::sum, 2, 3);
    REQUIRE(how.premultiplied);
    CHECK(nccl::allreduce(*r.comm, nullptr, reduction(DType::float32, ReduceOp::sum, 2), {}).ok());
    const nccl::Piece wrong[] = {{data, nullptr, 8}};
    CHECK_FALSE(nccl::allreduce(*r.comm, r.device.stream, how, wrong).ok());
    CHECK(nccl::allreduce(*r.comm, r.device.stream, how, pieces).ok());
    // The simulated ncclCommDestroy reports leftovers.
  });
}
