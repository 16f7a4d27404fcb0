// The MPI backend, in processes over the simulated MPI: every collective computes the same as our own
// algorithms, and every misbehaviour of MPI becomes an error.
#include "backends/mpi.h"

#include <sys/eventfd.h>

#include <chrono>
#include <numeric>

#include "../collectives/elements.h"
#include "../contains.h"
#include "../mpi/processes.h"
#include "backends/host.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

struct Job {
  explicit Job(bool reduces = false) {
    REQUIRE(testing::open(&session).ok());
    std::unique_ptr<Backend> host;
    REQUIRE(make_host_backend("", &host).ok());
    // The job's rank order differs from MPI's.
    for (int i = session->size() - 1; i >= 0; --i) {
      comm.global_ranks.push_back(session->size() - 1 - i);
      comm.labels.push_back("rank " + std::to_string(session->size() - 1 - i));
      world.push_back(i);
    }
    backend = make_mpi_backend(session, world, reduces, std::move(host));
    comm.size = session->size();
    comm.rank = session->size() - 1 - session->rank();
    comm.waiter = &waiter;
    comm.scratch = &scratch;
    comm.timeout = variable("HVD_TEST_TIMEOUT").empty() ? 20 : std::atof(variable("HVD_TEST_TIMEOUT").c_str());
  }

  mpi::Session* session = nullptr;
  WakeupWord word;
  Waiter waiter{WakeupEvent(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), &word), {.spins = 0, .yields = 0}};
  Scratch scratch;
  std::vector<int> world;
  Comm comm;
  std::unique_ptr<Backend> backend;
};

Buffer input(DType d, size_t count, int rank) { return random_elements(d, count, 100 * count + static_cast<size_t>(rank)); }

// Sizes on both sides of all limits of the backend, in bytes: local addition, slices, and pieces.
constexpr size_t kSizes[] = {4, 4096, 200 << 10, 1 << 20, (2 << 20) + 4104};

Buffer reduced(DType d, ReduceOp op, size_t count, int size, const Scale& scale) {
  Buffer result(count * size_of(d));
  reduce_many(d, op, result.data(), pointers(inputs(d, count, size, count)), count, {});
  if (!scale.identity()) hvd::scale(d, result.data(), result.data(), count, scale);  // of the sum as transferred
  return result;
}

void check_allreduce(Job& job, DType d, ReduceOp op, size_t bytes) {
  CAPTURE(name_of(d));
  CAPTURE(static_cast<int>(op));
  CAPTURE(bytes);
  const size_t count = bytes / size_of(d);
  const Scale scale = is_float(d) && op == ReduceOp::sum ? Scale{1.0, job.comm.size} : Scale{};
  const Buffer expected = reduced(d, op, count, job.comm.size, scale), own = input(d, count, job.comm.rank);
  Buffer result(own.size());
  const Segments::Piece one{own.data(), result.data(), count};
  REQUIRE(job.backend->allreduce(job.comm, {{&one, 1}, count}, d, op, scale).ok());
  CHECK(result == expected);
  // In place, and as three tensors with arbitrary boundaries.
  Buffer in_place = own;
  const size_t first = count / 3, second = count / 2 - first;
  const size_t element = size_of(d);
  std::byte* at = in_place.data();
  const Segments::Piece three[] = {{at, at, first},
                                   {at + first * element, at + first * element, second},
                                   {at + (first + second) * element, at + (first + second) * element, count - first - second}};
  REQUIRE(job.backend->allreduce(job.comm, {three, count}, d, op, scale).ok());
  CHECK(in_place == expected);
}

void check_movement(Job& job, size_t bytes) {
  CAPTURE(bytes);
  Comm& c = job.comm;
  const auto size = static_cast<size_t>(c.size), me = static_cast<size_t>(c.rank);
  const int root = c.size - 1;
  Buffer data = input(DType::uint8, bytes, c.rank);
  REQUIRE(job.backend->broadcast(c, data.data(), bytes, root).ok());
  CHECK(data == input(DType::uint8, bytes, root));

  std::vector<size_t> parts;  // rank 0 has no rows
  Buffer expected;
  for (size_t i = 0; i < size; ++i) {
    parts.push_back(i * bytes / 2);
    const Buffer part = input(DType::uint8, parts.back(), static_cast<int>(i));
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const Buffer own = input(DType::uint8, parts[me], c.rank);
  Buffer gathered(expected.size());
  REQUIRE(job.backend->allgather(c, own.data(), gathered.data(), parts).ok());
  CHECK(gathered == expected);

  // Rank i sends (i + j) * bytes / 3 to rank j, as consecutive parts of its input.
  const auto sent = [&](size_t i, size_t j) { return (i + j) * bytes / 3; };
  std::vector<size_t> send, receive;
  expected.clear();
  for (size_t i = 0; i < size; ++i) {
    send.push_back(sent(me, i));
    receive.push_back(sent(i, me));
    size_t all = 0, before = 0;
    for (size_t j = 0; j < size; ++j) all += sent(i, j), before += j < me ? sent(i, j) : 0;
    const Buffer part = input(DType::uint8, all, static_cast<int>(i));
    expected.insert(expected.end(), part.begin() + static_cast<long>(before), part.begin() + static_cast<long>(before + sent(i, me)));
  }
  const Buffer all = input(DType::uint8, std::accumulate(send.begin(), send.end(), size_t{0}), c.rank);
  Buffer received(expected.size());
  REQUIRE(job.backend->alltoall(c, all.data(), send, received.data(), receive).ok());
  CHECK(received == expected);
}

void check_reducescatter(Job& job, DType d, size_t bytes) {
  Comm& c = job.comm;
  const auto size = static_cast<size_t>(c.size), me = static_cast<size_t>(c.rank);
  std::vector<size_t> counts;
  for (size_t i = 0; i < size; ++i) counts.push_back(i * bytes / size_of(d) / size);
  const size_t all = std::accumulate(counts.begin(), counts.end(), size_t{0}),
               before = std::accumulate(counts.begin(), counts.begin() + c.rank, size_t{0});
  const Buffer own = input(d, all, c.rank), expected = reduced(d, ReduceOp::sum, all, c.size, {});
  Buffer result(counts[me] * size_of(d));
  REQUIRE(job.backend->reducescatter(c, own.data(), result.data(), counts, d, ReduceOp::sum, {}).ok());
  const auto from = expected.begin() + static_cast<long>(before * size_of(d));
  CHECK(result == Buffer(from, from + static_cast<long>(result.size())));
}

}  // namespace

TEST_CASE("rank: all collectives" * doctest::skip()) {
  arrive();
  Job job;
  for (const DType d : kAllDTypes) {
    for (const ReduceOp op : kAllOps) check_allreduce(job, d, op, 4096);
  }
  for (const size_t bytes : kSizes) {
    for (const DType d : {DType::float32, DType::bfloat16, DType::int64}) check_allreduce(job, d, ReduceOp::sum, bytes / 8 * 8);
    check_movement(job, bytes);
    check_reducescatter(job, DType::float32, bytes);
  }
  CHECK(job.backend->barrier(job.comm).ok());
  job.backend->set_removed(job.comm);
  CHECK(job.backend->barrier(job.comm).ok());
  CHECK(job.session->finish(20));
}

TEST_CASE("all collectives, over every family and thread level, have the bits of the one order") {
  const std::string test_case = "rank: all collectives";
  for (const std::string& library : {kOpenMpi, kMpich, kStandard}) {
    CAPTURE(library);
    for (const int status : testing::run(3, test_case, {{"HVD_TEST_LIBRARY", library}})) CHECK(status == 0);
  }
  for (const char* level : {"1", "2"}) {
    for (const int status : testing::run(2, test_case, {{"HVD_TEST_LIBRARY", kMpich}, {"SIMMPI_LEVEL", level}})) CHECK(status == 0);
  }
  for (const int status : testing::run(4, test_case, {{"HVD_TEST_LIBRARY", kStandard}, {"SIMMPI_LOOKS", "0"}})) CHECK(status == 0);
}

TEST_CASE("rank: MPI reduces" * doctest::skip()) {
  arrive();
  Job job(true);
  // the first two give equal bits in any order
  for (const DType d : {DType::int32, DType::uint16, DType::bfloat16, DType::boolean}) {
    for (const ReduceOp op : kAllOps) check_allreduce(job, d, op, 1 << 20);
  }
  constexpr size_t kCount = 1000;
  const Buffer own = input(DType::float32, kCount, job.comm.rank),
               expected = reduced(DType::float32, ReduceOp::sum, kCount, job.comm.size, {});
  Buffer result(own.size());
  const Segments::Piece one{own.data(), result.data(), kCount};
  REQUIRE(job.backend->allreduce(job.comm, {{&one, 1}, kCount}, DType::float32, ReduceOp::sum, {}).ok());
  CHECK(result != expected);  // the simulated MPI adds in reverse order
  for (size_t i = 0; i < kCount; ++i)
    CHECK(std::abs(get_float(DType::float32, result.data(), i) - get_float(DType::float32, expected.data(), i)) < 1e-6);
  CHECK_FALSE(job.backend->may_be_guarded(job.comm, 1, DType::float32));
  CHECK(job.session->finish(20));
}

TEST_CASE("MPI reduces where that is asked for, and what it cannot is reduced here") {
  for (const std::string& library : {kOpenMpi, kMpich, kStandard}) {
    CAPTURE(library);
    for (const int status : testing::run(3, "rank: MPI reduces", {{"HVD_TEST_LIBRARY", library}})) CHECK(status == 0);
  }
}

TEST_CASE("rank: is left in an operation" * doctest::skip()) {
  arrive();
  Job job;
  REQUIRE(job.backend->barrier(job.comm).ok());
  if (variable("HVD_TEST_LOST") == "1") {
    if (job.comm.rank == 1) return;
    job.waiter.set_hook([n = 0]() mutable { return ++n > 3 ? Status(Code::peer_lost, "rank 1 was lost") : Status(); }, nullptr);
  }
  const size_t bytes = 1 << 20;
  Buffer data = input(DType::float32, bytes / 4, job.comm.rank), result(bytes);
  const Segments::Piece one{data.data(), result.data(), bytes / 4};
  const auto begin = std::chrono::steady_clock::now();
  const Status status = job.backend->allreduce(job.comm, {{&one, 1}, bytes / 4}, DType::float32, ReduceOp::sum, {});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK_MESSAGE(contains(status.message(), variable("HVD_TEST_SAYS")), status.message());
  const Status next = job.backend->barrier(job.comm);
  CHECK(contains(next.message(), "MPI cannot be used in this process any more"));
  CHECK(contains(next.message(), status.message()));
  CHECK(job.session->finish(5));  // does not wait for the remaining rank
}

TEST_CASE("whatever MPI does, an operation ends, and MPI is left alone from then on") {
  const std::string test_case = "rank: is left in an operation";
  const auto all_end = [&](Variables variables) {
    variables["HVD_TEST_LIBRARY"] = kMpich;
    for (const char* level : {"1", "3"}) {
      variables["SIMMPI_LEVEL"] = level;
      for (const int status : testing::run(2, test_case, variables)) CHECK(status == 0);
    }
  };
  SUBCASE("a call that fails") {
    all_end({{"SIMMPI_FAIL", "Ialltoallv:1"}, {"HVD_TEST_SAYS", "MPI_Ialltoallv failed with error 15 of MPICH 5.0.2: simulated failure"}});
  }
  SUBCASE("an operation that fails while it is under way") {
    all_end({{"SIMMPI_BREAK", "Ialltoallv"}, {"HVD_TEST_SAYS", "MPI_Ialltoallv failed with error 15"}});
  }
  SUBCASE("an operation that never ends") {
    all_end({{"SIMMPI_NEVER", "Ialltoallv"},
             {"HVD_TEST_TIMEOUT", "0.3"},
             {"HVD_TEST_SAYS", "no progress for 0.3 s while waiting for MPI_Ialltoallv of MPICH 5.0.2 with rank 0, rank 1"}});
  }
  SUBCASE("a rank that does not come any more") { all_end({{"HVD_TEST_LOST", "1"}, {"HVD_TEST_SAYS", "rank 1 was lost"}}); }
}
