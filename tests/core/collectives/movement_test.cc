// Broadcast, allgather, alltoall, reducescatter and barrier: over links, and in large and small shared
// memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "elements.h"
#include "harness_links.h"
#include "harness_shm.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Calls body(world, by_links) with worlds of all kinds and several sizes.
template <class Body>
void on_all_wires(Body body) {
  for (int size : {1, 2, 3, 4, 5, 8}) {
    CAPTURE(size);
    for (Wire wire : {Wire::inproc, Wire::mixed}) {
      CAPTURE(std::string(name_of(wire)));
      LinkWorld world(size, {.wire = wire});
      body(world, true);
    }
    for (size_t staging : {kSmallStaging, size_t{8} << 20}) {
      CAPTURE(staging);
      ShmWorld world(size, staging);
      body(world, false);
    }
  }
}

// Sum of the first `count` parts.
size_t sum_of(const std::vector<size_t>& parts, int count) { return std::accumulate(parts.begin(), parts.begin() + count, size_t{0}); }

}  // namespace

TEST_CASE("broadcast from the first and the last root, of nothing and up to many rounds") {
  on_all_wires([](auto& world, bool by_links) {
    using Broadcast = Status (*)(Comm&, std::byte*, size_t, int);
    const auto algorithms = by_links ? std::vector<Broadcast>{broadcast_tree, broadcast_pipelined} : std::vector<Broadcast>{broadcast_shm};
    for (int root = 0; root < world.size(); root += std::max(1, world.size() - 1)) {
      for (size_t n : {0, 1, 4097, 60'001}) {
        for (Broadcast algorithm : algorithms) {
          INFO(n, " bytes from ", root);
          auto data = inputs(DType::uint8, n, world.size(), n + 3);
          const Buffer want = data[root];
          check_ok(world.run([&](Comm& comm) { return algorithm(comm, data[comm.rank].data(), n, root); }));
          for (const Buffer& got : data) CHECK(got == want);
        }
      }
    }
  });
  ShmWorld world(2);
  for (int root : {-1, 2}) {
    for (const Status& s : world.run([&](Comm& comm) { return broadcast_shm(comm, nullptr, 4, root); }))
      CHECK(s.message().find("got " + std::to_string(root)) != std::string::npos);
  }
}

TEST_CASE("allgather of parts of different sizes, some empty, out of place and in place") {
  on_all_wires([](auto& world, bool by_links) {
    const int size = world.size();
    for (int pattern = 0; pattern < 3; ++pattern) {
      std::vector<size_t> bytes;
      std::vector<Buffer> in;
      Buffer want;
      for (int r = 0; r < size; ++r) {
        const auto n = static_cast<size_t>(r);
        bytes.push_back(pattern == 0 ? 1000 : pattern == 1 ? n % 2 * 3001 * n : r == size / 2 ? 50'001 : 0);
        in.push_back(random_elements(DType::uint8, bytes[r], n + 1));
        want.insert(want.end(), in[r].begin(), in[r].end());
      }
      std::vector<Buffer> out(size, Buffer(want.size())), in_place = out;
      const auto algorithm = by_links ? allgather_ring : allgather_shm;
      check_ok(world.run([&](Comm& comm) {
        const int r = comm.rank;
        HVD_RETURN_IF_ERROR(algorithm(comm, in[r].data(), out[r].data(), bytes));
        std::byte* own = in_place[r].data() + sum_of(bytes, r);
        std::copy(in[r].begin(), in[r].end(), own);
        return algorithm(comm, own, in_place[r].data(), bytes);
      }));
      for (int r = 0; r < size; ++r) {
        CHECK(out[r] == want);
        CHECK(in_place[r] == want);
      }
    }
  });
}

TEST_CASE("alltoall with parts of different sizes, some empty, also on more ranks than one window takes") {
  const auto check = [](auto& world, bool by_links) {
    const int size = world.size();
    for (size_t unit : {1, 1500, 9999}) {
      auto bytes = [&](int from, int to) { return static_cast<size_t>((from * 7 + to * 3) % 4) * unit; };
      auto part = [&](int from, int to) { return random_elements(DType::uint8, bytes(from, to), static_cast<uint64_t>(from * 100 + to)); };
      std::vector<Buffer> out(size);
      check_ok(world.run([&](Comm& comm) {
        std::vector<size_t> send, receive;
        Buffer in;
        for (int p = 0; p < size; ++p) {
          send.push_back(bytes(comm.rank, p));
          receive.push_back(bytes(p, comm.rank));
          const Buffer b = part(comm.rank, p);
          in.insert(in.end(), b.begin(), b.end());
        }
        Buffer& own = out[comm.rank];
        own.resize(sum_of(receive, size));
        return (by_links ? alltoall_pairwise : alltoall_shm)(comm, in.data(), send, own.data(), receive);
      }));
      for (int r = 0; r < size; ++r) {
        Buffer want;
        for (int p = 0; p < size; ++p) {
          const Buffer b = part(p, r);
          want.insert(want.end(), b.begin(), b.end());
        }
        CHECK(out[r] == want);
      }
    }
  };
  on_all_wires(check);
  LinkWorld many(19);
  check(many, true);
}

TEST_CASE("reducescatter with different counts, some zero, scaled, in place in shared memory; else the input stays as it was") {
  on_all_wires([](auto& world, bool by_links) {
    const int size = world.size();
    for (DType d : {DType::float32, DType::float16, DType::int32, DType::boolean}) {
      for (const Scale& scale : {Scale{}, Scale{1.0, size}}) {
        std::vector<size_t> counts;
        for (int r = 0; r < size; ++r) counts.push_back(r % 3 == 1 ? 0 : 1700 + 13 * static_cast<size_t>(r));
        const size_t n = sum_of(counts, size);
        const auto in = inputs(d, n, size, 11);
        const Buffer want = reference(d, ReduceOp::sum, in, n, scale);
        auto data = in;
        std::vector<Buffer> out(size);
        check_ok(world.run([&](Comm& comm) -> Status {
          const int r = comm.rank;
          out[r].resize(counts[r] * size_of(d));
          const auto algorithm = by_links ? reducescatter_pairwise : reducescatter_shm;
          HVD_RETURN_IF_ERROR(algorithm(comm, data[r].data(), out[r].data(), counts, d, ReduceOp::sum, scale));
          if (data[r] != in[r]) return Status(Code::internal, "the input was changed");
          if (by_links) return {};
          return algorithm(comm, data[r].data(), data[r].data() + sum_of(counts, r) * size_of(d), counts, d, ReduceOp::sum, scale);
        }));
        for (int r = 0; r < size; ++r) {
          const auto first = static_cast<ptrdiff_t>(sum_of(counts, r) * size_of(d));
          CHECK(std::equal(out[r].begin(), out[r].end(), want.begin() + first));
          if (!by_links) CHECK(std::equal(out[r].begin(), out[r].end(), data[r].begin() + first));
        }
      }
    }
  });
}

TEST_CASE("barrier: no rank leaves before the last has come") {
  on_all_wires([](auto& world, bool by_links) {
    std::atomic<int> arrived{0};
    check_ok(world.run([&](Comm& comm) -> Status {
      for (int round = 1; round <= 50; ++round) {
        arrived.fetch_add(1);
        HVD_RETURN_IF_ERROR(by_links ? barrier_dissemination(comm) : barrier_shm(comm));
        if (arrived.load() < round * comm.size) return Status(Code::internal, "left too early in round " + std::to_string(round));
      }
      return {};
    }));
  });
}
