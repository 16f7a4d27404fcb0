#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "elements.h"
#include "harness_shm.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr int kSegmentSizes[] = {1, 2, 3, 4, 5, 8};
// Compares one allreduce of n elements, out of place and then in place, with the reference.
void check_allreduce(ShmWorld& world, DType d, ReduceOp op, size_t n, const Scale& s) {
  INFO(name_of(d), " ", name_of(op), " of ", n, " on ", world.size(), " ranks");
  const auto in = inputs(d, n, world.size(), n + 1);
  const Buffer want = reference(d, op, in, n, s);
  auto unchanged = in, in_place = in;
  std::vector<Buffer> out(world.size(), Buffer(n * size_of(d)));
  check_ok(world.run([&](Comm& comm) {
    const std::vector<Segments::Piece> apart = {{unchanged[comm.rank].data(), out[comm.rank].data(), n}};
    HVD_RETURN_IF_ERROR(allreduce_shm(comm, segments_of(apart), d, op, s));
    std::byte* both = in_place[comm.rank].data();
    const std::vector<Segments::Piece> together = {{both, both, n}};
    return allreduce_shm(comm, segments_of(together), d, op, s);
  }));
  CHECK(unchanged == in);
  CHECK(out == std::vector(world.size(), want));
  CHECK(in_place == out);
}

}  // namespace

TEST_CASE("allreduce_shm: every dtype and operation") {
  for (int size : {2, 5}) {
    ShmWorld world(size, kSmallStaging);
    for (DType d : kAllDTypes) {
      for (ReduceOp op : kAllOps) check_allreduce(world, d, op, 7001, op == ReduceOp::sum ? Scale{1.0, size} : Scale{});
    }
  }
}

TEST_CASE("allreduce_shm: sizes around every limit, on every number of ranks") {
  for (int size : kSegmentSizes) {
    ShmWorld large(size), small(size, kSmallStaging);
    for (size_t n : {0, 1, 7, 1000, 1024, 1025, 4096, 4097, 65537}) {
      check_allreduce(large, DType::float32, ReduceOp::sum, n, {});
      check_allreduce(small, DType::float32, ReduceOp::sum, n, {0.5, 3});
      check_allreduce(small, DType::float16, ReduceOp::sum, n, {1.0, size});
    }
  }
}

TEST_CASE("allreduce_shm: fused tensors, missing inputs and outputs, unaligned data: the same bits as one by one") {
  for (int size : kSegmentSizes) {
    for (size_t staging : {kSmallStaging, size_t{8} << 20}) {
      for (DType d : {DType::float32, DType::bfloat16, DType::int64}) {
        ShmWorld world(size, staging);
        const std::vector<size_t> counts = {1, 0, 333, 5, 20000, 7, 1, 4096, 0};
        const size_t e = size_of(d), total = std::accumulate(counts.begin(), counts.end(), size_t{0});
        INFO(name_of(d), " on ", size, " ranks, staging ", staging);
        auto in = inputs(d, total, size, 3);
        // Rank `size - 1` has joined: no inputs, no outputs. Rank 0 lacks the input of piece 4 and the output
        // of piece 2.
        const int joined = size > 1 ? size - 1 : -1;
        std::vector<size_t> first(counts.size(), 0);
        for (size_t i = 1; i < counts.size(); ++i) first[i] = first[i - 1] + counts[i - 1];
        std::vector<Buffer> effective = in;
        if (joined >= 0) std::fill(effective[joined].begin(), effective[joined].end(), std::byte{0});
        std::fill_n(effective[0].begin() + first[4] * e, counts[4] * e, std::byte{0});
        const Buffer want = reference(d, ReduceOp::sum, effective, total, {1.0, 2});

        std::vector<Buffer> shifted(size), out(size);
        check_ok(world.run([&](Comm& comm) {
          const int r = comm.rank;
          shifted[r].resize(total * e + 3 * counts.size());
          out[r].assign(shifted[r].size(), std::byte{0x77});
          std::vector<Segments::Piece> pieces;
          for (size_t i = 0; i < counts.size(); ++i) {
            const size_t at = first[i] * e + 3 * i;  // pieces at odd addresses
            std::copy_n(in[r].begin() + first[i] * e, counts[i] * e, shifted[r].begin() + at);
            const bool no_in = r == joined || (r == 0 && i == 4), no_out = r == joined || (r == 0 && i == 2);
            const bool in_place = i == 5 && !no_in;
            std::byte* source = shifted[r].data() + at;
            pieces.push_back({no_in ? nullptr : source, no_out ? nullptr : in_place ? source : out[r].data() + at, counts[i]});
          }
          return allreduce_shm(comm, segments_of(pieces), d, ReduceOp::sum, {1.0, 2});
        }));
        for (int r = 0; r < size; ++r) {
          for (size_t i = 0; i < counts.size(); ++i) {
            const size_t at = first[i] * e + 3 * i, bytes = counts[i] * e;
            const bool in_place = i == 5 && r != joined;
            const Buffer& where = in_place ? shifted[r] : out[r];
            const bool dropped = r == joined || (r == 0 && i == 2);
            INFO("piece ", i, " of rank ", r);
            const Buffer expected =
                dropped ? Buffer(bytes, std::byte{0x77}) : Buffer(want.data() + first[i] * e, want.data() + first[i] * e + bytes);
            CHECK(std::equal(expected.begin(), expected.end(), where.begin() + at));
          }
        }
      }
    }
  }
}

TEST_CASE("alltoall_shm: a receiver that expects another size says so") {
  ShmWorld world(2, kSmallStaging);
  const auto messages = world.run([](Comm& comm) {
    Buffer in(64), out(64);
    const std::vector<size_t> send = {8, 8}, recv = {8, comm.rank == 0 ? size_t{12} : size_t{8}};
    return alltoall_shm(comm, in.data(), send, out.data(), recv);
  });
  CHECK(messages[0].message() == "alltoall: rank 1 sends 8 bytes to this rank, which expects 12");
}

TEST_CASE("a peer that never comes is a timeout that names it, in every collective") {
  using Body = std::function<Status(Comm&)>;
  std::vector<std::byte> a(4096), b(4096 * 2);
  const std::vector<size_t> halves = {512, 512}, bytes = {4096, 4096};
  const std::vector<Segments::Piece> tiny = {{a.data(), b.data(), 16}}, larger = {{a.data(), b.data(), 4096}};
  const Body bodies[] = {
      [&](Comm& c) { return allreduce_shm(c, segments_of(tiny), DType::float32, ReduceOp::sum, {}); },
      [&](Comm& c) { return allreduce_shm(c, segments_of(larger), DType::uint8, ReduceOp::sum, {}); },
      [&](Comm& c) { return broadcast_shm(c, a.data(), 100, 1); },
      [&](Comm& c) { return allgather_shm(c, a.data(), b.data(), bytes); },
      [&](Comm& c) { return alltoall_shm(c, a.data(), halves, b.data(), halves); },
      [&](Comm& c) { return reducescatter_shm(c, a.data(), b.data(), halves, DType::uint8, ReduceOp::sum, {}); },
      [&](Comm& c) { return barrier_shm(c); },
  };
  for (const Body& body : bodies) {
    ShmWorld world(2, kSmallStaging, 0.05);
    auto absent = world.group(1, 0, {0, 1});
    auto present = world.group(0, 0, {0, 1});
    // Data staged early are visible until they are withdrawn.
    CHECK(stage_allreduce_shm(present->comm, segments_of(tiny), DType::float32));
    CHECK(absent->node.reached(0, 1));
    present->node.withdraw();
    CHECK(!absent->node.reached(0, 1));
    const Status s = body(present->comm);
    CHECK(s.code() == Code::timeout);
    CHECK(s.message().find("local rank 1") != std::string::npos);
  }
}

TEST_CASE("a staging area that is too small is refused, with the size that would do") {
  ShmWorld world(8, 4096);
  const std::vector<Segments::Piece> pieces = {{nullptr, nullptr, 100000}};
  for (auto& m : world.run([&](Comm& c) { return allreduce_shm(c, segments_of(pieces), DType::float32, ReduceOp::sum, {}); })) {
    CHECK(m.message().find(" bytes for 8 local ranks, got 4096") != std::string::npos);
  }
}
