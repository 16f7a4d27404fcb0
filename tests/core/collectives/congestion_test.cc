// Slow receivers and connections with tiny buffers: every algorithm over links completes on real sockets. If
// an algorithm sent everything before receiving, both sides would wait for each other and time out here.
#include <doctest/doctest.h>

#include <numeric>

#include "elements.h"
#include "harness_links.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr size_t kManyBytes = 1 << 20;  // many times the buffers of two sockets
constexpr size_t kMany = kManyBytes / sizeof(int32_t);

// The last rank is delayed while receiving from its neighbour, at a position within a block.
Options held_up(Wire wire, int size, size_t bytes) {
  Options options{.wire = wire, .timeout = 120};
  options.faults = [=](int rank, int peer) {
    FaultScript script;
    if (rank == size - 1 && peer == 0) {
      script.nap_after_received = bytes / 5;
      script.nap_ms = 120;
    }
    return script;
  };
  return options;
}

using Congestible = Status (*)(Comm&, std::byte*, size_t, DType, ReduceOp);
struct Congested {
  const char* name;
  Congestible run;
};
constexpr Congested kLinkAllreduces[] = {{"recursive doubling", allreduce_recursive_doubling},
                                         {"Rabenseifner", allreduce_rabenseifner},
                                         {"pairwise", allreduce_pairwise},
                                         {"ring", allreduce_ring}};

// Integers, so that the order of additions does not matter.
void check_held_up(LinkWorld& world, const Congested& algorithm, size_t n, const char* wire) {
  INFO(std::string(algorithm.name), " of ", n, " int32 on ", world.size(), " ranks over ", std::string(wire));
  std::vector<Buffer> data = inputs(DType::int32, n, world.size(), n);
  const Buffer want = reference(DType::int32, ReduceOp::sum, data, n);
  const auto results = world.run([&](Comm& c) { return algorithm.run(c, data[c.rank].data(), n, DType::int32, ReduceOp::sum); });
  check_ok(results);
  for (const Buffer& got : data) CHECK(got == want);
}

}  // namespace

TEST_CASE("allreduce with tiny socket buffers and a rank held up in the middle: mixed sizes one after the other, and 1 MiB") {
  for (const Congested& algorithm : kLinkAllreduces) {
    for (Wire wire : {Wire::tcp, Wire::unix_socket}) {
      for (int size : {2, 3, 4, 5}) {
        LinkWorld world(size, held_up(wire, size, 100'000));
        for (size_t n : {size_t{1}, size_t{30'011}, size_t{5}}) check_held_up(world, algorithm, n, name_of(wire));
      }
    }
    for (const auto& [wire, size] : {std::pair(Wire::unix_socket, 2), {Wire::unix_socket, 5}, {Wire::tcp, 3}}) {
      LinkWorld world(size, held_up(wire, size, kManyBytes));
      check_held_up(world, algorithm, kMany, name_of(wire));
    }
  }
}

TEST_CASE("the other collectives with tiny socket buffers and a rank held up in the middle") {
  constexpr size_t kBytes = 200'000;
  for (Wire wire : {Wire::tcp, Wire::unix_socket}) {
    for (int size : {2, 3, 5}) {
      INFO(size, " ranks over ", std::string(name_of(wire)));
      LinkWorld world(size, held_up(wire, size, kBytes / static_cast<size_t>(size)));
      std::vector<Buffer> parts;
      Buffer all;
      for (int r = 0; r < size; ++r) {
        parts.push_back(random_elements(DType::uint8, kBytes, static_cast<uint64_t>(r)));
        all.insert(all.end(), parts[r].begin(), parts[r].end());
      }
      std::vector<Buffer> tree(size, parts[0]), chain(size, parts[0]), gathered(size, Buffer(all.size())), swapped = gathered;
      const std::vector<size_t> bytes(size, kBytes);
      const auto results = world.run([&](Comm& c) -> Status {
        if (c.rank != 0) tree[c.rank].assign(kBytes, {}), chain[c.rank].assign(kBytes, {});
        HVD_RETURN_IF_ERROR(broadcast_tree(c, tree[c.rank].data(), kBytes, 0));
        HVD_RETURN_IF_ERROR(broadcast_pipelined(c, chain[c.rank].data(), kBytes, 0));
        HVD_RETURN_IF_ERROR(allgather_ring(c, parts[c.rank].data(), gathered[c.rank].data(), bytes));
        // Each rank sends its own part to every rank, so each receives the result of an allgather.
        Buffer copies;
        for (int i = 0; i < size; ++i) copies.insert(copies.end(), parts[c.rank].begin(), parts[c.rank].end());
        HVD_RETURN_IF_ERROR(alltoall_pairwise(c, copies.data(), bytes, swapped[c.rank].data(), bytes));
        return barrier_dissemination(c);
      });
      check_ok(results);
      for (int r = 0; r < size; ++r) {
        CHECK(tree[r] == parts[0]);
        CHECK(chain[r] == parts[0]);
        CHECK(gathered[r] == all);
        CHECK(swapped[r] == all);
      }
    }
  }
}
