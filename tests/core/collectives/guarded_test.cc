// Guarded allreduces over all kinds of links: the agreed result, the bits of values sent with the votes, and
// ranks that are out of step.
#include "collectives/guarded.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "elements.h"
#include "harness_links.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr Wire kVoteWires[] = {Wire::inproc, Wire::unix_socket, Wire::tcp, Wire::shm, Wire::mixed};
constexpr uint64_t kSchedule = 7;

Status finish(Comm& comm, GuardedAllreduce& vote) {
  Wait wait(*comm.waiter, comm.timeout, "a vote");
  while (true) {
    bool moved = false;
    HVD_RETURN_IF_ERROR(vote.advance(&moved));
    if (!vote.under_way()) return {};
    if (moved) {
      wait.progress();
    } else {
      HVD_RETURN_IF_ERROR(wait.pause());
    }
  }
}

// Sequential votes; in some of them a rank wants to leave, in most some ranks are ahead.
void vote_often(LinkWorld& world, DType acc, ReduceOp op, size_t n, int rounds) {
  check_ok(world.run([&](Comm& comm) -> Status {
    GuardedAllreduce vote;
    std::mt19937_64 common(n);
    for (int round = 0; round < rounds; ++round) {
      const auto position = static_cast<uint64_t>(round);
      std::vector<uint64_t> ready;
      for (int r = 0; r < comm.size; ++r) ready.push_back(position + (common() % 8 == 0 ? 0 : 1 + common() % 3));
      const std::vector<Buffer> in = inputs(acc, n, comm.size, position);
      std::byte* values = vote.begin(comm, kSchedule, position, ready[comm.rank], n, acc, op);
      if (n) std::memcpy(values, in[comm.rank].data(), in[comm.rank].size());
      HVD_RETURN_IF_ERROR(finish(comm, vote));
      const uint64_t least = *std::min_element(ready.begin(), ready.end());
      if (vote.agreed() != least)
        return Status(Code::internal, "agreed on " + std::to_string(vote.agreed()) + " instead of " + std::to_string(least));
      if (least <= position || n == 0) continue;
      const Buffer want = reference(acc, op, in, n);
      if (std::memcmp(want.data(), values, want.size()) != 0) return Status(Code::internal, "wrong bits");
    }
    return {};
  }));
}

}  // namespace

TEST_CASE("everybody agrees on the least, and the data are reduced in THE order") {
  for (Wire wire : kVoteWires) {
    for (int size : {2, 3, 4, 5, 8}) {
      LinkWorld world(size, {wire});
      for (size_t n : {0, 1, 1000}) {
        INFO(std::string(name_of(wire)), " ", size, " ranks, ", n, " values");
        vote_often(world, DType::float32, ReduceOp::sum, n, 20);
      }
    }
  }
}

TEST_CASE("ranks that are out of step name both places") {
  LinkWorld world(2);
  const auto results = world.run([&](Comm& comm) {
    GuardedAllreduce vote;
    const uint64_t position = comm.rank == 0 ? 4 : 6;
    vote.begin(comm, kSchedule, position, position + 1, 0, DType::float32, ReduceOp::sum);
    return finish(comm, vote);
  });
  for (int r = 0; r < 2; ++r) {
    CHECK(results[r].code() == Code::internal);
    CHECK(results[r].message().find("position 4 of schedule 7") != std::string::npos);
    CHECK(results[r].message().find("position 6 of schedule 7") != std::string::npos);
    CHECK(results[r].message().find("rank " + std::to_string(1 - r)) != std::string::npos);
  }
  // Other lengths would shift all following bytes.
  LinkWorld other(2, {.timeout = 4});  // rank 1 waits until the timeout: rank 0 gives up without notice
  const auto lengths = other.run([&](Comm& comm) {
    GuardedAllreduce vote;
    vote.begin(comm, kSchedule, 0, 1, comm.rank == 0 ? 1 : 2, DType::float32, ReduceOp::sum);
    Status s = finish(comm, vote);
    return s;
  });
  CHECK(lengths[0].code() == Code::internal);
  CHECK(lengths[0].message().find("8 bytes in step 1, expected 4") != std::string::npos);
}

TEST_CASE("a vote that waits says for whom") {
  LinkWorld world(2);
  GuardedAllreduce vote;
  vote.begin(world.comm(0), kSchedule, 0, 1, 1, DType::float32, ReduceOp::sum);
  bool moved = false;
  CHECK(vote.advance(&moved).ok());
  CHECK(vote.under_way());
  CHECK(vote.waits_for() == "data from rank 1");
}
