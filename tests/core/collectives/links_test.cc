// Allreduces over every kind of link, compared with a scalar reference, bit for bit.
#include <doctest/doctest.h>

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

std::vector<Buffer> reduced(LinkWorld& world, Allreduce algorithm, std::vector<Buffer> data, DType d, ReduceOp op) {
  check_ok(world.run([&](Comm& comm) { return algorithm(comm, data[comm.rank].data(), data[comm.rank].size() / size_of(d), d, op); }));
  return data;
}

void check_in_order(LinkWorld& world, const Named& algorithm, DType d, ReduceOp op, size_t n) {
  INFO(std::string(algorithm.name), ": ", name_of(d), " ", name_of(op), " of ", n, " on ", world.size(), " ranks");
  const auto in = inputs(d, n, world.size(), n + 1);
  const Buffer want = reference(d, op, in, n);
  for (const Buffer& got : reduced(world, algorithm.run, in, d, op)) CHECK(got == want);
}

// Checks results against float64 sums of the inputs, with a tolerance.
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

TEST_CASE("allreduce on every kind of link, with more data than any buffer holds" * doctest::test_suite("long")) {
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

// The order that the hierarchical algorithm guarantees: canonical within each host, then canonical among the
// hosts, rounded once.
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
    sums.push_back(reference(acc, op, wide, n));
  }
  const Buffer total = reference(acc, op, sums, n);
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
    const Buffer on_one_host = reference(DType::float32, ReduceOp::sum, in, 1003);
    CHECK(reduced(world, allreduce_hierarchical, in, DType::float32, ReduceOp::sum)[0] != on_one_host);
  }
}

namespace {

// Bytes that all ranks together send over links.
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
  // Between hosts, large slices are reduced by the pairwise algorithm, or from 16 hosts on by Rabenseifner's,
  // and return as 16 bits.
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
