#include "nccl/communicator.h"

#include <doctest/doctest.h>

#include "contains.h"
#include "ranks.h"

using namespace hvd;
using hvd::testing::as_ranks;
using hvd::testing::contains;
using hvd::testing::Knob;
using hvd::testing::new_id;
using hvd::testing::Rank;
using hvd::testing::wait_until;
using State = nccl::Communicator::State;

namespace {

const Status kLost(Code::peer_lost, "rank 1 is lost", 1);

// Enqueues an allreduce of one float.
Status one_float(Rank& r, nccl::Communicator& c, float* data) {
  const nccl::Piece pieces[] = {{data, data, 1}};
  return nccl::allreduce(c, r.device.stream, nccl::decide({.size = r.size}), pieces);
}

Status aborted(std::vector<std::shared_ptr<nccl::Communicator>> communicators, double seconds = 60) {
  const auto ending = nccl::abort(communicators, kLost, seconds);
  CHECK_FALSE(ending->leaked());
  ending->wait();
  return ending->outcome();
}

}  // namespace

TEST_CASE("made and warmed up in 1 to 4 ranks: what follows needs nobody else to be called") {
  for (int size = 1; size <= 4; ++size) {
    const nccl::UniqueId id = new_id();
    std::atomic<int> launched{0};
    as_ranks(size, [&](Rank& r) {
      r.comm = r.make(id, true);
      REQUIRE(Rank::created(r.comm));
      CHECK(r.comm->error().ok());
      CHECK(r.comm->async_error().ok());
      float* data = r.device.upload(std::vector<float>{1});
      // In sequence, each after the previous one returned: no rank waits for the others within the call.
      REQUIRE(wait_until([&] { return launched == r.rank; }));
      REQUIRE(one_float(r, *r.comm, data).ok());
      ++launched;
      CHECK(r.device.finish());
      CHECK(r.device.download(data, 1)[0] == static_cast<float>(size));
      CHECK(r.destroy());
      CHECK(r.comm->state() == State::given_up);
      CHECK(contains(one_float(r, *r.comm, data).message(), "is destroyed"));
    });
  }
}

TEST_CASE("a rank that never comes: the others' creation is aborted, and the next one succeeds") {
  const nccl::UniqueId id = new_id();
  const nccl::UniqueId next = new_id();
  as_ranks(3, [&](Rank& r) {
    if (r.rank != 2) {
      r.comm = r.make(id);
      CHECK_FALSE(wait_until([&] { return r.comm->state() != State::making; }, 0.1));
      float* data = r.device.upload(std::vector<float>{1});
      CHECK(contains(one_float(r, *r.comm, data).message(), "still being created"));
      CHECK(aborted({r.comm}).ok());
      CHECK(r.comm->error().rank() == 1);
      CHECK(r.comm->state() == State::given_up);
    }
    r.comm = r.make(next, true);
    CHECK(Rank::created(r.comm));
    CHECK(r.device.finish());
    CHECK(r.destroy());
  });
}

TEST_CASE("a communicator may be given up at any moment of its creation, more than once, and nothing is left of it") {
  const auto living = testing::exported<int()>(testing::kSimulatedNccl, "simnccl_living");
  const int before = living();
  as_ranks(1, [](Rank& r) {
    for (int i = 0; i < 40; ++i) {
      const int size = 1 + i % 2;  // the second rank never arrives
      const size_t bytes = 4 * nccl::warm_up_bytes(size);
      auto c = nccl::Communicator::make(testing::simulated(), r.device.surroundings(), new_id(), size, 0,
                                        {r.device.stream, r.device.allocate(bytes), bytes});
      std::this_thread::sleep_for(std::chrono::microseconds(i * 150));
      CHECK(aborted({c, c}).ok());
      CHECK(aborted({c}).ok());
      CHECK(c->state() == State::given_up);
      CHECK(c->error().rank() == 1);
    }
    CHECK(r.device.finish());
  });
  CHECK(wait_until([&] { return living() == before; }));
}

TEST_CASE("a rank lost in the middle: abort of all communicators in one group frees the stream") {
  for (const char* version : {"22809", "21805"}) {
    const Knob knob("version", version);
    // The table was filled with another version, so query it again.
    const nccl::Library& library = *nccl::find({.chosen = testing::kSimulatedNccl, .candidates = {}}).library;
    const nccl::UniqueId ids[] = {new_id(), new_id()};
    as_ranks(2, [&](Rank& r) {
      std::vector<std::shared_ptr<nccl::Communicator>> both;
      CUstream streams[] = {r.device.stream, nullptr};
      REQUIRE(cuStreamCreateWithPriority(&streams[1], 1, 0) == 0);
      const size_t bytes = nccl::warm_up_bytes(2);
      for (int i = 0; i < 2; ++i) {
        both.push_back(
            nccl::Communicator::make(library, r.device.surroundings(), ids[i], 2, r.rank, {streams[i], r.device.allocate(bytes), bytes}));
        REQUIRE(Rank::created(both.back()));
      }
      if (r.rank == 0) {  // the other rank does nothing more
        float* data = r.device.upload(std::vector<float>{1, 2});
        for (int i = 0; i < 2; ++i) {
          const nccl::Piece pieces[] = {{data + i, data + i, 1}};
          REQUIRE(nccl::allreduce(*both[static_cast<size_t>(i)], streams[i], nccl::decide({.size = 2}), pieces).ok());
        }
        CHECK_FALSE(r.device.finish(0.1));
        CHECK(both[0]->async_error().ok());  // NCCL does not notice
      }
      CHECK(aborted(both).ok());
      CHECK(r.device.finish());
      CHECK(contains(both[0]->async_error().message(), "rank 1 is lost"));
    });
  }
}

TEST_CASE("what NCCL refuses at creation is passed on: two ranks on one device, an id that has served") {
  const nccl::UniqueId id = new_id();
  testing::simulated();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      testing::Device device(0);
      auto c = nccl::Communicator::make(testing::simulated(), device.surroundings(), id, 2, rank);
      CHECK_FALSE(Rank::created(c));
      CHECK(c->state() == State::failed);
      CHECK(contains(c->error().message(), "NCCL error 5"));
      CHECK(contains(c->error().message(), "Duplicate GPU detected : rank 0 and rank 1"));
      CHECK(contains(c->error().message(), "creating an NCCL communicator of 2 ranks, as its rank " + std::to_string(rank)));
      CHECK(aborted({c}).ok());
      // The same id again.
      c = nccl::Communicator::make(testing::simulated(), device.surroundings(), id, 2, rank);
      CHECK_FALSE(Rank::created(c));
      CHECK(contains(c->error().message(), "has served before"));
      CHECK(aborted({c}).ok());
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(std::string(simcuda_violations()) == "");
}

TEST_CASE("where NCCL_COMM_BLOCKING=0 makes calls return early, each is waited for") {
  const Knob blocking("blocking", "0");
  testing::with_communicator(3, [](Rank& r) {
    float* data = r.device.upload(std::vector<float>{1, 2, 3, 4});
    const nccl::Piece pieces[] = {{data, data, 2}, {data + 2, data + 2, 2}};
    for (int i = 0; i < 3; ++i) {
      REQUIRE(nccl::allreduce(*r.comm, r.device.stream, nccl::decide({.prescale = 2, .size = 3}), pieces).ok());
      REQUIRE(nccl::broadcast(*r.comm, r.device.stream, data, 16, 1).ok());
    }
    CHECK(r.device.finish());
    CHECK(r.device.download(data, 4) == std::vector<float>{216, 432, 648, 864});
  });
}
