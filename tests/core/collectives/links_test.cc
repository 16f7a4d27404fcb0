// Every collective over links, on every kind of link: results against a scalar reference, bit for bit.
#include <doctest/doctest.h>

#include <atomic>
#include <numeric>

#include "elements.h"
#include "harness_links.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

using Allreduce = Status (*)(Comm&, std::byte*, size_t, DType, ReduceOp);
struct Named {
  const char* name;
  Allreduce run;
};
constexpr Named kInOrder[] = {{"recursive doubling", allreduce_recursive_doubling},
                              {"Rabenseifner", allreduce_rabenseifner},
                              {"pairwise", allreduce_pairwise},
                              {"tree", allreduce_tree},
                              {"driver", allreduce_driver},
                              {"naive", allreduce_naive}};
constexpr Wire kWires[] = {Wire::inproc, Wire::unix_socket, Wire::tcp, Wire::shm, Wire::mixed};
constexpr int kSizes[] = {1, 2, 3, 4, 5, 8};

void check_ok(const std::vector<Status>& results) {
  for (const Status& s : results) CHECK_MESSAGE(s.ok(), s.message());
}

std::vector<Buffer> inputs(DType d, size_t n, int ranks, uint64_t seed) {
  std::vector<Buffer> all;
  for (int r = 0; r < ranks; ++r) all.push_back(random_elements(d, n, seed * 100 + r));
  return all;
}

std::vector<const std::byte*> pointers(const std::vector<Buffer>& buffers) {
  std::vector<const std::byte*> p;
  for (auto& b : buffers) p.push_back(b.data());
  return p;
}

std::vector<Buffer> reduced(LinkWorld& world, Allreduce algorithm, std::vector<Buffer> data, DType d, ReduceOp op) {
  check_ok(world.run([&](Comm& comm) { return algorithm(comm, data[comm.rank].data(), data[comm.rank].size() / size_of(d), d, op); }));
  return data;
}

void check_in_order(LinkWorld& world, const Named& algorithm, DType d, ReduceOp op, size_t n) {
  INFO(std::string(algorithm.name), ": ", name_of(d), " ", name_of(op), " of ", n, " on ", world.size(), " ranks");
  const auto in = inputs(d, n, world.size(), n + 1);
  const Buffer want = reference(d, op, pointers(in), n);
  for (const Buffer& got : reduced(world, algorithm.run, in, d, op)) CHECK(got == want);
}

// float64 sums of what the ranks put in, and how far a result may be from them.
void check_near(const std::vector<Buffer>& in, const Buffer& got, DType d) {
  const double unit = d == DType::float64 ? 0x1p-53 : d == DType::float32 ? 0x1p-24 : d == DType::float16 ? 0x1p-11 : 0x1p-8;
  size_t wrong = 0;
  for (size_t i = 0; i < got.size() / size_of(d); ++i) {
    double sum = 0, magnitude = 0;
    for (const Buffer& b : in) {
      sum += get_float(d, b.data(), i);
      magnitude += std::abs(get_float(d, b.data(), i));
    }
    const double slack = unit * std::abs(sum) + static_cast<double>(in.size()) * 0x1p-24 * magnitude;
    wrong += !(std::abs(get_float(d, got.data(), i) - sum) <= slack);
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("allreduce in THE order: the same bits from every algorithm, on every rank, for every size of the world") {
  for (int size : kSizes) {
    LinkWorld world(size);
    for (const Named& algorithm : kInOrder) {
      for (DType d : {DType::float32, DType::bfloat16, DType::int32}) {
        for (size_t n : {0, 1, 2, 3, 7, 1003}) check_in_order(world, algorithm, d, ReduceOp::sum, n);
      }
    }
  }
}

TEST_CASE("allreduce: every dtype and operation") {
  LinkWorld world(3), larger(4);
  for (DType d : kAllDTypes) {
    for (ReduceOp op : kAllOps) {
      for (const Named& algorithm : kInOrder) check_in_order(world, algorithm, d, op, 65);
      check_in_order(larger, kInOrder[1], d, op, 65);
    }
  }
}

TEST_CASE("allreduce on every kind of link, with more data than any buffer holds") {
  for (Wire wire : kWires) {
    for (int size : {2, 5}) {
      INFO(std::string(name_of(wire)));
      LinkWorld world(size, {.wire = wire});
      for (const Named& algorithm : kInOrder) {
        check_in_order(world, algorithm, DType::float32, ReduceOp::sum, 50'001);
        check_in_order(world, algorithm, DType::float16, ReduceOp::sum, 50'001);
      }
    }
  }
}

TEST_CASE("allreduce over 16 MiB of contributions: the algorithms that collect them go in rounds") {
  LinkWorld world(3, {.wire = Wire::shm, .capacity = 64 << 10});
  for (const Named& algorithm : {kInOrder[2], kInOrder[4], kInOrder[5]}) {
    check_in_order(world, algorithm, DType::float32, ReduceOp::sum, 2'000'003);
  }
}

TEST_CASE("ring allreduce: integers exactly, floats near the sum in float64, the same bits on all ranks") {
  for (int size : kSizes) {
    for (Wire wire : {Wire::inproc, Wire::unix_socket}) {
      LinkWorld world(size, {.wire = wire});
      for (size_t n : {0, 1, 3, 7, 1003, size <= 3 ? 60'000 : 4000}) {  // slices of several blocks, for few ranks
        INFO(n, " on ", size);
        check_in_order(world, {"ring", allreduce_ring}, DType::int64, ReduceOp::sum, n);
        check_in_order(world, {"ring", allreduce_ring}, DType::float32, ReduceOp::max, n);
        for (DType d : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
          const auto in = inputs(d, n, size, n + 1);
          const auto got = reduced(world, allreduce_ring, in, d, ReduceOp::sum);
          for (const Buffer& b : got) CHECK(b == got[0]);
          check_near(in, got[0], d);
        }
      }
    }
  }
}

namespace {

// What the hierarchical algorithm promises: THE order inside each host, then THE order among the hosts, rounded once.
Buffer by_host(const std::vector<Buffer>& in, const std::vector<int>& host_of, DType d, ReduceOp op, size_t n) {
  const DType acc = accumulator(d);
  std::vector<Buffer> sums;
  for (int h = 0; h <= *std::max_element(host_of.begin(), host_of.end()); ++h) {
    std::vector<Buffer> wide;
    for (size_t r = 0; r < in.size(); ++r) {
      if (host_of[r] != h) continue;
      wide.push_back(in[r]);
      if (!is_half(d)) continue;
      wide.back() = Buffer(n * sizeof(float));
      widen(d, reinterpret_cast<float*>(wide.back().data()), in[r].data(), n);
    }
    sums.push_back(reference(acc, op, pointers(wide), n));
  }
  const Buffer total = reference(acc, op, pointers(sums), n);
  if (!is_half(d)) return total;
  Buffer narrowed(n * size_of(d));
  narrow(d, narrowed.data(), reinterpret_cast<const float*>(total.data()), n);
  return narrowed;
}

}  // namespace

TEST_CASE("hierarchical allreduce on hosts of equal and of different sizes") {
  const std::vector<int> worlds[] = {{0, 0, 1, 1}, {0, 0, 1}, {0, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 1, 0, 1, 0}, {0, 0, 0, 1, 1, 2}};
  for (const auto& host_of : worlds) {
    LinkWorld world(static_cast<int>(host_of.size()), {.host_of = host_of});
    for (DType d : {DType::float32, DType::float16, DType::bfloat16, DType::int16}) {
      for (ReduceOp op : {ReduceOp::sum, ReduceOp::min}) {
        for (size_t n : {0, 1, 5, 1003, 50'001}) {  // the last: more than kSmall a slice
          INFO(name_of(d), " ", name_of(op), " of ", n, " on ", host_of.size(), " ranks");
          const auto in = inputs(d, n, world.size(), n + 7);
          const Buffer want = by_host(in, host_of, d, op, n);
          for (const Buffer& got : reduced(world, allreduce_hierarchical, in, d, op)) CHECK(got == want);
        }
      }
    }
  }
}

// docs/performance.md says which layouts share bits, and why not all do.
TEST_CASE("hierarchical allreduce gives the bits of one host where all hosts have the same power of two of consecutive ranks") {
  const std::vector<int> alike[] = {{0, 0, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4}};
  for (const auto& host_of : alike) {
    LinkWorld world(static_cast<int>(host_of.size()), {.host_of = host_of});
    check_in_order(world, {"hierarchical", allreduce_hierarchical}, DType::float32, ReduceOp::sum, 1003);
    check_in_order(world, {"hierarchical", allreduce_hierarchical}, DType::bfloat16, ReduceOp::sum, 1003);
  }
  const std::vector<int> unlike[] = {{0, 1, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1, 1, 1}};
  for (const auto& host_of : unlike) {
    LinkWorld world(static_cast<int>(host_of.size()), {.host_of = host_of});
    const auto in = inputs(DType::float32, 1003, world.size(), 5);
    const Buffer on_one_host = reference(DType::float32, ReduceOp::sum, pointers(in), 1003);
    CHECK(reduced(world, allreduce_hierarchical, in, DType::float32, ReduceOp::sum)[0] != on_one_host);
  }
}

namespace {

// Bytes that all ranks together hand to links.
size_t traffic_of(LinkWorld& world, Allreduce algorithm, DType d, size_t n) {
  std::vector<Counter> traffic(world.size());
  for (int r = 0; r < world.size(); ++r) {
    world.comm(r).traffic = &traffic[r];
    if (world.comm(r).cross) world.comm(r).cross->traffic = &traffic[r];
  }
  reduced(world, algorithm, inputs(d, n, world.size(), 3), d, ReduceOp::sum);
  size_t sent = 0;
  for (const Counter& t : traffic) sent += t.get();
  return sent;
}

}  // namespace

TEST_CASE("16-bit floats travel as 16 bits, but for the sums of several ranks that are to be added to others") {
  struct Case {
    Named algorithm;
    int size;
    double sums;  // of those, in multiples of the tensor, over all connections
  };
  const Case cases[] = {
      {{"pairwise", allreduce_pairwise}, 2, 0},
      {{"pairwise", allreduce_pairwise}, 3, 0},
      {{"pairwise", allreduce_pairwise}, 8, 0},
      {{"naive", allreduce_naive}, 4, 0},
      {{"driver", allreduce_driver}, 4, 0},
      {{"doubling", allreduce_recursive_doubling}, 2, 0},
      {{"doubling", allreduce_recursive_doubling}, 3, 1},
      {{"doubling", allreduce_recursive_doubling}, 4, 4},
      {{"doubling", allreduce_recursive_doubling}, 5, 5},
      {{"doubling", allreduce_recursive_doubling}, 8, 16},
      {{"Rabenseifner", allreduce_rabenseifner}, 2, 0},
      {{"Rabenseifner", allreduce_rabenseifner}, 3, 0.5},
      {{"Rabenseifner", allreduce_rabenseifner}, 4, 1},
      {{"Rabenseifner", allreduce_rabenseifner}, 8, 3},
      {{"tree", allreduce_tree}, 2, 0},
      {{"tree", allreduce_tree}, 3, 0},
      {{"tree", allreduce_tree}, 4, 1},
      {{"tree", allreduce_tree}, 8, 3},
      {{"ring", allreduce_ring}, 2, 0},
      {{"ring", allreduce_ring}, 3, 1},
      {{"ring", allreduce_ring}, 8, 6},
  };
  constexpr size_t n = 8 * 3 * 100;
  for (const auto& [algorithm, size, sums] : cases) {
    INFO(std::string(algorithm.name), " on ", size, " ranks");
    LinkWorld world(size);
    const size_t elements = traffic_of(world, algorithm.run, DType::float32, n) / sizeof(float);
    for (DType d : {DType::float16, DType::bfloat16}) {
      CHECK(traffic_of(world, algorithm.run, d, n) == 2 * elements + 2 * static_cast<size_t>(sums * n));
    }
  }
  // Between hosts: large slices go in by the pairwise algorithm, or from 16 hosts on by Rabenseifner's, and come back as 16 bits.
  for (const int hosts : {4, 16}) {
    INFO(hosts, " hosts");
    std::vector<int> host_of;
    for (int r = 0; r < hosts + 1; ++r) host_of.push_back(std::max(0, r - 1));  // two ranks on the first
    LinkWorld world(hosts + 1, {.capacity = 64 << 10, .host_of = host_of});
    constexpr size_t large = 16 * 1024;
    const size_t elements = traffic_of(world, allreduce_hierarchical, DType::float32, large) / sizeof(float);
    CHECK(elements == 2 * large * (static_cast<size_t>(hosts) - 1));
    CHECK(traffic_of(world, allreduce_hierarchical, DType::float16, large) == elements / 2 * (sizeof(float) + 2));
  }
}

TEST_CASE("16-bit floats: the result is the float32 sum, rounded once, within half a unit of the last place of the exact sum") {
  for (int size : {2, 3, 4, 7, 8}) {
    LinkWorld world(size);
    for (DType d : {DType::float16, DType::bfloat16}) {
      const auto in = inputs(d, 1003, size, 11);
      for (const Named& algorithm : kInOrder) check_near(in, reduced(world, algorithm.run, in, d, ReduceOp::sum)[0], d);
    }
  }
}

TEST_CASE("hierarchical allreduce refuses a process set without hosts") {
  LinkWorld world(2);
  Buffer data(8);
  const Status s = allreduce_hierarchical(world.comm(0), data.data(), 2, DType::float32, ReduceOp::sum);
  CHECK(s.code() == Code::internal);
}

TEST_CASE("broadcast from every root") {
  for (int size : kSizes) {
    for (Wire wire : {Wire::inproc, Wire::mixed}) {
      LinkWorld world(size, {.wire = wire});
      for (int root = 0; root < size; ++root) {
        for (size_t n : {0, 1, 20'000}) {
          for (auto algorithm : {broadcast_tree, broadcast_pipelined}) {
            INFO(n, " bytes from ", root, " of ", size);
            auto data = inputs(DType::uint8, n, size, n + 3);
            const Buffer want = data[root];
            check_ok(world.run([&](Comm& comm) { return algorithm(comm, data[comm.rank].data(), n, root); }));
            for (const Buffer& got : data) CHECK(got == want);
          }
        }
      }
    }
  }
}

TEST_CASE("allgather of blocks of different sizes, some empty, out of place and in place") {
  for (int size : kSizes) {
    for (Wire wire : {Wire::inproc, Wire::tcp}) {
      LinkWorld world(size, {.wire = wire});
      for (int pattern = 0; pattern < 3; ++pattern) {
        std::vector<size_t> bytes(size);
        for (int r = 0; r < size; ++r) bytes[r] = pattern == 0 ? 1000 : pattern == 1 ? (r % 2) * 3001u * r : (r == size / 2) * 9999u;
        Buffer want;
        std::vector<Buffer> in;
        for (int r = 0; r < size; ++r) {
          in.push_back(random_elements(DType::uint8, bytes[r], r + 1));
          want.insert(want.end(), in[r].begin(), in[r].end());
        }
        std::vector<Buffer> out(size, Buffer(want.size())), in_place = out;
        check_ok(world.run([&](Comm& comm) {
          const int r = comm.rank;
          HVD_RETURN_IF_ERROR(allgather_ring(comm, in[r].data(), out[r].data(), bytes));
          std::byte* mine = in_place[r].data() + std::accumulate(bytes.begin(), bytes.begin() + r, size_t{0});
          std::copy(in[r].begin(), in[r].end(), mine);
          return allgather_ring(comm, mine, in_place[r].data(), bytes);
        }));
        for (int r = 0; r < size; ++r) {
          CHECK(out[r] == want);
          CHECK(in_place[r] == want);
        }
      }
    }
  }
}

TEST_CASE("alltoall with parts of different sizes, some empty, also on more ranks than one window takes") {
  for (int size : {1, 2, 3, 5, 8, 19}) {
    for (Wire wire : {Wire::inproc, Wire::unix_socket}) {
      if (size == 19 && wire != Wire::inproc) continue;
      LinkWorld world(size, {.wire = wire});
      auto bytes = [](int from, int to) { return static_cast<size_t>((from * 7 + to * 3) % 4 * 1500); };
      auto part = [&](int from, int to) { return random_elements(DType::uint8, bytes(from, to), from * 100 + to); };
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
        Buffer& mine = out[comm.rank];
        mine.resize(std::accumulate(receive.begin(), receive.end(), size_t{0}));
        return alltoall_pairwise(comm, in.data(), send, mine.data(), receive);
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
  }
}

TEST_CASE("reducescatter with different counts, some zero, scaled") {
  for (int size : kSizes) {
    LinkWorld world(size, {.wire = size % 2 ? Wire::mixed : Wire::inproc});
    for (DType d : {DType::float32, DType::float16, DType::int32}) {
      for (const Scale& scale : {Scale{}, Scale{2.0, size}}) {
        std::vector<size_t> counts(size);
        for (int r = 0; r < size; ++r) counts[r] = r == 1 ? 0 : 700 + 13 * r;
        const size_t n = std::accumulate(counts.begin(), counts.end(), size_t{0});
        const auto in = inputs(d, n, size, 11);
        const Buffer want = reference(d, ReduceOp::sum, pointers(in), n, scale);
        std::vector<Buffer> out(size);
        check_ok(world.run([&](Comm& comm) {
          out[comm.rank].resize(counts[comm.rank] * size_of(d));
          return reducescatter_pairwise(comm, in[comm.rank].data(), out[comm.rank].data(), counts, d, ReduceOp::sum, scale);
        }));
        Buffer got;
        for (const Buffer& b : out) got.insert(got.end(), b.begin(), b.end());
        CHECK(got == want);
      }
    }
  }
}

TEST_CASE("barrier: nobody leaves before everybody has come") {
  for (int size : kSizes) {
    LinkWorld world(size, {.wire = Wire::mixed});
    std::atomic<int> arrived{0};
    std::atomic<int> early{0};
    check_ok(world.run([&](Comm& comm) -> Status {
      for (int round = 1; round <= 20; ++round) {
        arrived.fetch_add(1);
        HVD_RETURN_IF_ERROR(barrier_dissemination(comm));
        if (arrived.load() < round * size) early.fetch_add(1);
      }
      return {};
    }));
    CHECK(early.load() == 0);
  }
}
