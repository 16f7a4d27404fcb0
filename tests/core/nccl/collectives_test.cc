#include "nccl/collectives.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

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

// Small whole numbers: exact in every type, whatever the order of additions.
template <class T>
std::vector<T> values(int rank, size_t count, int seed = 0) {
  std::vector<T> v(count);
  for (size_t i = 0; i < count; ++i) v[i] = static_cast<T>((static_cast<size_t>(rank * 3 + seed) + i) % 7 + 1);
  return v;
}

template <class T>
std::vector<T> reduced(ReduceOp op, int size, size_t count, int seed = 0) {
  std::vector<T> all = values<T>(0, count, seed);
  for (int r = 1; r < size; ++r) {
    const std::vector<T> more = values<T>(r, count, seed);
    for (size_t i = 0; i < count; ++i) {
      const T a = all[i], b = more[i];
      all[i] = op == ReduceOp::min   ? std::min(a, b)
               : op == ReduceOp::max ? std::max(a, b)
                                     : static_cast<T>(op == ReduceOp::product ? a * b : a + b);
    }
  }
  return all;
}

template <class T>
void check_allreduce(Rank& r, DType d) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    for (const size_t count : {size_t{1}, size_t{1000}}) {
      T* in = r.device.upload(values<T>(r.rank, count));
      auto* out = static_cast<T*>(r.device.allocate(count * sizeof(T)));
      const nccl::Piece pieces[] = {{in, out, count}};
      REQUIRE(nccl::allreduce(*r.comm, r.device.stream, reduction(d, op, r.size), pieces).ok());
      REQUIRE(r.device.finish());
      CHECK(r.device.download(out, count) == reduced<T>(op, r.size, count));
    }
  }
}

}  // namespace

TEST_CASE("allreduce of every type and operation, in 1 to 4 ranks") {
  for (int size = 1; size <= 4; ++size) {
    with_communicator(size, [](Rank& r) {
      check_allreduce<float>(r, DType::float32);
      check_allreduce<double>(r, DType::float64);
      check_allreduce<int8_t>(r, DType::int8);
      check_allreduce<uint8_t>(r, DType::uint8);
      check_allreduce<int32_t>(r, DType::int32);
      check_allreduce<int64_t>(r, DType::int64);
    });
  }
}

TEST_CASE("averages: NCCL's where they are exact, else a sum that the caller divides") {
  for (int size = 1; size <= 4; ++size) {
    with_communicator(size, [](Rank& r) {
      constexpr size_t kCount = 100;
      std::vector<uint16_t> in;
      for (const float v : values<float>(r.rank, kCount)) in.push_back(float_to_bfloat16(v));
      uint16_t* data = r.device.upload(in);
      const nccl::Reduction how = reduction(DType::bfloat16, ReduceOp::average, r.size, 0.5);
      REQUIRE(how.before.factor == (r.size == 1 ? 0.5 : 1.0));
      const nccl::Piece pieces[] = {{data, data, kCount}};
      REQUIRE(nccl::allreduce(*r.comm, r.device.stream, how, pieces).ok());
      REQUIRE(r.device.finish());
      const std::vector<float> sum = reduced<float>(ReduceOp::sum, r.size, kCount);
      const std::vector<uint16_t> got = r.device.download(data, kCount);
      for (size_t i = 0; i < kCount; ++i) {
        const double scaled = bfloat16_to_float(got[i]) * how.before.factor * how.after.factor / static_cast<double>(how.after.divisor);
        CHECK(scaled == doctest::Approx(sum[i] / 2 / r.size).epsilon(1e-6));
      }
    });
  }
}

TEST_CASE("several pieces are one group, and pieces without elements are left out") {
  with_communicator(3, [](Rank& r) {
    std::vector<nccl::Piece> pieces;
    std::vector<float*> data;
    const size_t counts[] = {5, 0, 1000, 1};
    for (size_t i = 0; i < 4; ++i) {
      data.push_back(r.device.upload(values<float>(r.rank, counts[i], static_cast<int>(i))));
      pieces.push_back({data[i], data[i], counts[i]});
    }
    REQUIRE(nccl::allreduce(*r.comm, r.device.stream, reduction(DType::float32, ReduceOp::sum, 3, 2), pieces).ok());
    REQUIRE(r.device.finish());
    for (size_t i = 0; i < 4; ++i) {
      std::vector<float> expected = reduced<float>(ReduceOp::sum, 3, counts[i], static_cast<int>(i));
      for (float& v : expected) v *= 2;
      CHECK(r.device.download(data[i], counts[i]) == expected);
    }
  });
}

TEST_CASE("broadcast, allgather and alltoall move bytes, with parts of any size") {
  for (int size = 1; size <= 4; ++size) {
    with_communicator(size, [size](Rank& r) {
      for (int root = 0; root < size; ++root) {
        uint8_t* data = r.device.upload(values<uint8_t>(r.rank, 33));
        REQUIRE(nccl::broadcast(*r.comm, r.device.stream, data, 33, root).ok());
        REQUIRE(r.device.finish());
        CHECK(r.device.download(data, 33) == values<uint8_t>(root, 33));
      }
      for (const bool equal : {true, false}) {
        for (const bool in_place : {true, false}) {
          std::vector<size_t> bytes;
          std::vector<uint8_t> expected;
          size_t mine = 0;
          for (int i = 0; i < size; ++i) {
            if (i == r.rank) mine = expected.size();
            bytes.push_back(equal ? 10 : static_cast<size_t>(7 * ((i + 1) % 3)));
            const std::vector<uint8_t> part = values<uint8_t>(i, bytes.back());
            expected.insert(expected.end(), part.begin(), part.end());
          }
          const std::vector<uint8_t> part = values<uint8_t>(r.rank, bytes[static_cast<size_t>(r.rank)]);
          std::vector<uint8_t> before(expected.size());
          if (in_place) std::copy(part.begin(), part.end(), before.begin() + static_cast<ptrdiff_t>(mine));
          uint8_t* out = r.device.upload(before);
          const uint8_t* in = in_place ? out + mine : r.device.upload(part);
          REQUIRE(nccl::allgather(*r.comm, r.device.stream, in, out, bytes).ok());
          REQUIRE(r.device.finish());
          CHECK(r.device.download(out, expected.size()) == expected);
        }
      }
      // Rank i sends (i + 2j) mod 4 bytes to rank j: some of them none.
      const auto parts = [](int from, int to) { return static_cast<size_t>((from + 2 * to) % 4); };
      std::vector<size_t> send, recv;
      std::vector<uint8_t> in, expected;
      for (int i = 0; i < size; ++i) {
        send.push_back(parts(r.rank, i));
        recv.push_back(parts(i, r.rank));
        in.insert(in.end(), send.back(), static_cast<uint8_t>(16 * r.rank + i));
        expected.insert(expected.end(), recv.back(), static_cast<uint8_t>(16 * i + r.rank));
      }
      auto* out = static_cast<uint8_t*>(r.device.allocate(expected.size()));
      REQUIRE(nccl::alltoall(*r.comm, r.device.stream, r.device.upload(in), send, out, recv).ok());
      REQUIRE(r.device.finish());
      CHECK(r.device.download(out, expected.size()) == expected);
    });
  }
}

TEST_CASE("reducescatter with equal and unequal parts, in place and not") {
  for (int size = 1; size <= 4; ++size) {
    with_communicator(size, [size](Rank& r) {
      for (const bool equal : {true, false}) {
        for (const bool in_place : {true, false}) {
          std::vector<size_t> counts;
          size_t total = 0, mine = 0;
          for (int i = 0; i < size; ++i) {
            if (i == r.rank) mine = total;
            counts.push_back(equal ? 6 : static_cast<size_t>(5 * ((i + 1) % 3)));
            total += counts.back();
          }
          const size_t count = counts[static_cast<size_t>(r.rank)];
          float* in = r.device.upload(values<float>(r.rank, total));
          float* out = in_place ? in + mine : static_cast<float*>(r.device.allocate(count * 4));
          REQUIRE(nccl::reducescatter(*r.comm, r.device.stream, reduction(DType::float32, ReduceOp::average, size), in, out, counts).ok());
          REQUIRE(r.device.finish());
          const std::vector<float> all = reduced<float>(ReduceOp::sum, size, total), got = r.device.download(out, count);
          for (size_t i = 0; i < count; ++i) CHECK(got[i] == doctest::Approx(all[mine + i] / static_cast<float>(size)));
        }
      }
    });
  }
}

TEST_CASE("a gather of unequal parts among more ranks than a few goes by sends and receives") {
  // Ten ranks on four devices: for NCCL they are on hosts of their own.
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
    // In a group still open this would never reach the stream.
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
    // The simulated ncclCommDestroy complains about what is left.
  });
}

TEST_CASE("ranks that disagree are found by the checker, and end by an abort") {
  const Knob patience("patience_ms", "0");
  const nccl::UniqueId id = testing::new_id();
  std::atomic<int> complaints{0};
  as_ranks(2, [&](Rank& r) {
    r.comm = r.make(id, true);
    REQUIRE(Rank::made(r.comm));
    REQUIRE(r.device.finish());
    float* data = r.device.upload(values<float>(r.rank, 8));
    const nccl::Piece pieces[] = {{data, data, r.rank == 0 ? size_t{8} : size_t{7}}};
    REQUIRE(nccl::allreduce(*r.comm, r.device.stream, reduction(DType::float32, ReduceOp::sum, 2), pieces).ok());
    CHECK_FALSE(r.device.finish(0.3));
    const std::string said = simcuda_violations();
    if (contains(said, "ranks disagree about collective") && contains(said, "count 8") && contains(said, "count 7")) ++complaints;
    const auto ending = nccl::abort(std::span(&r.comm, 1), {}, 60);
    ending->wait();
    CHECK(ending->outcome().ok());
    CHECK(r.device.finish());
  });
  CHECK(complaints == 1);
}
