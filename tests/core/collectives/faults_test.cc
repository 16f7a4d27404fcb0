// Collectives over faulty links: errors on every rank that depends on them, no endless wait, no wrong data.
#include <doctest/doctest.h>

#include <chrono>
#include <deque>
#include <thread>

#include "elements.h"
#include "harness_links.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr size_t kCount = 20'000;

struct Operation {
  const char* name;
  std::function<Status(Comm&, std::byte* data)> run;  // on kCount float32
  bool all_depend;  // true if the cut affects every rank
};

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"recursive doubling",
       [](Comm& c, std::byte* p) { return allreduce_recursive_doubling(c, p, kCount, DType::float32, ReduceOp::sum); }, true},
      {"Rabenseifner", [](Comm& c, std::byte* p) { return allreduce_rabenseifner(c, p, kCount, DType::float32, ReduceOp::sum); }, true},
      {"pairwise", [](Comm& c, std::byte* p) { return allreduce_pairwise(c, p, kCount, DType::float32, ReduceOp::sum); }, true},
      {"tree", [](Comm& c, std::byte* p) { return allreduce_tree(c, p, kCount, DType::float32, ReduceOp::sum); }, false},
      // The other ranks may have their results before the connection to one of them breaks.
      {"driver", [](Comm& c, std::byte* p) { return allreduce_driver(c, p, kCount, DType::float32, ReduceOp::sum); }, false},
      {"naive", [](Comm& c, std::byte* p) { return allreduce_naive(c, p, kCount, DType::float32, ReduceOp::sum); }, false},
      {"ring", [](Comm& c, std::byte* p) { return allreduce_ring(c, p, kCount, DType::float32, ReduceOp::sum); }, true},
      {"compressed",
       [](Comm& c, std::byte* p) {
    const Segments::Piece piece{p, p, kCount};
    return allreduce_compressed(c, {{&piece, 1}, kCount}, {}, WireFormat::int8, {});
  }, true},
      {"pipelined broadcast", [](Comm& c, std::byte* p) { return broadcast_pipelined(c, p, kCount * 4, 0); }, false},
      {"tree broadcast", [](Comm& c, std::byte* p) { return broadcast_tree(c, p, kCount * 4, 0); }, false},
  };
  return all;
}

bool connected(int rank, int peer, int a, int b) { return (rank == a && peer == b) || (rank == b && peer == a); }

std::vector<Status> run_on(LinkWorld& world, const Operation& operation, std::vector<Buffer>& data) {
  for (int r = 0; r < world.size(); ++r) data.push_back(random_elements(DType::float32, kCount, r));
  return world.run([&](Comm& comm) { return operation.run(comm, data[comm.rank].data()); });
}

}  // namespace

// Ranks that notice only by the timeout wait for all of it, so the cases run in parallel.
TEST_CASE("a connection that breaks in the middle is an error, and the others do not wait for ever") {
  struct Case {
    const Operation& operation;
    Wire wire;
    int other;
    std::vector<Status> results;
  };
  std::deque<Case> cases;
  for (const Operation& operation : operations()) {
    // Ranks 0 and 1 communicate in each of these, except that the tree goes from 0 to 2 first.
    const int other = std::string(operation.name) == "tree broadcast" ? 2 : 1;
    for (Wire wire : {Wire::inproc, Wire::unix_socket}) cases.push_back({operation, wire, other, {}});
  }
  std::vector<std::thread> threads;
  for (Case& one : cases) {
    threads.emplace_back([&one] {
      LinkWorld world(4, {.wire = one.wire, .timeout = 4, .faults = [&one](int rank, int peer) {
        return FaultScript{.cut_after_sent = connected(rank, peer, 0, one.other) && rank == 0 ? 5000 : FaultScript::kNever};
      }});
      std::vector<Buffer> data;
      one.results = run_on(world, one.operation, data);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& [operation, wire, other, results] : cases) {
    INFO(std::string(operation.name), " on ", std::string(name_of(wire)));
    CHECK(results[0].code() == Code::peer_lost);
    CHECK(results[0].message().find("rank " + std::to_string(other)) != std::string::npos);
    CHECK(results[other].code() == Code::peer_lost);
    CHECK(results[other].message().find("rank 0 was lost: the peer closed its connection") != std::string::npos);
    for (const Status& s : results) {
      if (operation.all_depend) CHECK_FALSE(s.ok());
      if (!s.ok()) CHECK((s.code() == Code::peer_lost || s.code() == Code::timeout));
    }
  }
}

TEST_CASE("links that deliver in tiny pieces and stall change nothing but the time") {
  for (const Operation& operation : operations()) {
    for (Wire wire : {Wire::inproc, Wire::unix_socket, Wire::shm}) {
      for (SpinPolicy spin : {SpinPolicy{0, 0}, SpinPolicy{20, 3}}) {
        INFO(std::string(operation.name), " on ", std::string(name_of(wire)));
        LinkWorld plain(3), faulty(3, {.wire = wire, .spin = spin, .faults = [](int rank, int peer) {
          return FaultScript{.piece = static_cast<size_t>(61 + 40 * rank + 7 * peer), .stall_calls = 2, .stall_every = 5 + rank};
        }});
        std::vector<Buffer> want, got;
        for (const Status& s : run_on(plain, operation, want)) REQUIRE(s.ok());
        check_ok(run_on(faulty, operation, got));
        CHECK(got == want);
      }
    }
  }
}

TEST_CASE("a wait that ends without progress says for what and for whom, by global rank") {
  LinkWorld world(3, {.timeout = 0.15});
  world.comm(0).global_ranks = {10, 11, 12};
  std::vector<std::byte> big(100'000), small(4);
  const Status receive = recv_from(world.comm(0), 2, small);
  CHECK(receive.code() == Code::timeout);
  CHECK(receive.message() == "no progress for 0.15 s while waiting for data from rank 12");
  const Status both = exchange(world.comm(0), 1, big, 2, small);
  CHECK(both.message() == "no progress for 0.15 s while waiting for data from rank 12 and rank 11 to take data");
  Transfer transfers[] = {{1, {}, {}}, {2, big, small}};
  const Status all = exchange_all(world.comm(0), transfers);
  CHECK(all.message() == "no progress for 0.15 s while waiting for data from rank 12 and rank 12 to take data");
  CHECK(recv_from(world.comm(0), 0, small).message() == "no link to rank 10");
}

TEST_CASE("progress renews the deadline: a slow link is not a dead one") {
  LinkWorld world(2, {.capacity = 64, .timeout = 2});
  const auto results = world.run([&](Comm& comm) -> Status {
    std::byte data[64 * 30];
    if (comm.rank == 0) return send_to(comm, 1, data);
    for (int i = 0; i < 30; ++i) {  // 3 s in all, never 2 s without a byte
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      HVD_RETURN_IF_ERROR(recv_from(comm, 0, Bytes(data).subspan(0, 64)));
    }
    return {};
  });
  check_ok(results);
}
