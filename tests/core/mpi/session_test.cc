// MPI started, shared, left and ended, in processes over the simulated MPI.
#include "mpi/session.h"

#include <dlfcn.h>

#include "contains.h"
#include "processes.h"

using namespace hvd;
using namespace hvd::mpi;
using namespace hvd::testing;

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Gives up at the first poll; polls are counted.
Session::Look never(int* looks) {
  return [looks] { return ++*looks > 20 ? Status(Code::peer_lost, "rank 1 was lost") : Status(); };
}
const Session::Look always = [] { return Status(); };

// An MPI function, for calls by the program itself.
template <class F>
F* mpi_function(const char* name) {
  return reinterpret_cast<F*>(::dlsym(::dlopen(variable("HVD_TEST_LIBRARY").c_str(), RTLD_NOW), name));
}

void all_end_well(int size, const std::string& test_case, Variables variables) {
  for (const std::string& library : {kOpenMpi, kMpich, kStandard}) {
    CAPTURE(library);
    variables["HVD_TEST_LIBRARY"] = library;
    for (const int status : testing::run(size, test_case, variables)) CHECK(status == 0);
  }
}

void ends_well(int size, const std::string& test_case, Variables variables) {
  variables["HVD_TEST_LIBRARY"] = kMpich;
  for (const int status : testing::run(size, test_case, variables)) CHECK(status == 0);
}

}  // namespace

TEST_CASE("rank: makes communicators" * doctest::skip()) {
  const int me = arrive();
  Session* session = nullptr;
  REQUIRE(testing::open(&session).ok());
  CHECK(session->ours());
  CHECK(session->rank() == me);
  CHECK(session->size() == 3);
  CHECK(std::string(name_of(session->level())) == variable("HVD_TEST_LEVEL"));
  Handle all = 0, again = 0, pair = 0;
  REQUIRE(session->communicator({0, 1, 2}, always, &all).ok());
  REQUIRE(session->communicator({0, 1, 2}, always, &again).ok());
  CHECK(all == again);
  if (me != 1) {
    REQUIRE(session->communicator({2, 0}, always, &pair).ok());
    CHECK(pair != all);
    CHECK(session
              ->use([&] {
      int rank = -1;
      CHECK(session->library().comm_rank(pair, &rank) == 0);
      CHECK(rank == (me == 2 ? 0 : 1));
      return Status();
    }).ok());
    session->forget({2, 0}, always);
    REQUIRE(session->communicator({2, 0}, always, &again).ok());
    CHECK(again != pair);
  }
  Session* second = nullptr;
  CHECK(testing::open(&second).ok());
  CHECK(second == session);
  CHECK(session->finish(20));
  int finalized = 0;
  CHECK(session->library().finalized(&finalized) == 0);
  CHECK(finalized == 1);
  CHECK_FALSE(session->usable().ok());
}

TEST_CASE("every family, with every thread level that a library may grant") {
  const std::pair<const char*, const char*> levels[] = {
      {"0", "MPI_THREAD_SINGLE"}, {"1", "MPI_THREAD_FUNNELED"}, {"2", "MPI_THREAD_SERIALIZED"}, {"3", "MPI_THREAD_MULTIPLE"}};
  for (const auto& [granted, level] : levels)
    all_end_well(3, "rank: makes communicators", {{"SIMMPI_LEVEL", granted}, {"HVD_TEST_LEVEL", level}});
}

TEST_CASE("one thread where that was asked for") {
  ends_well(3, "rank: makes communicators", {{"HVD_TEST_ONE_THREAD", "1"}, {"HVD_TEST_LEVEL", "MPI_THREAD_FUNNELED"}});
}

TEST_CASE("rank: MPI_Init does not return" * doctest::skip()) {
  const int me = arrive();
  if (me == 1) return;  // does not want MPI
  Session* session = nullptr;
  const auto begin = Clock::now();
  const Status status = testing::open(&session, 0.3);
  CHECK(status.code() == Code::timeout);
  CHECK(contains(status.message(), "MPI_Init of MPICH 5.0.2"));
  CHECK(contains(status.message(), "has not returned within 0.3 s"));
  CHECK(since(begin) < 10);
  CHECK_FALSE(testing::open(&session).ok());  // and there is no second attempt
  CHECK(session->finish(5));  // nothing to end
}

TEST_CASE("whoever does not come to MPI_Init is waited for with a deadline") { ends_well(2, "rank: MPI_Init does not return", {}); }

TEST_CASE("rank: cannot begin" * doctest::skip()) {
  arrive();
  Session* session = nullptr;
  const Status status = testing::open(&session);
  CHECK(status.code() == Code::invalid_argument);
  CHECK_MESSAGE(contains(status.message(), variable("HVD_TEST_SAYS")), status.message());
}

TEST_CASE("what keeps MPI from being used is said") {
  const std::string test_case = "rank: cannot begin";
  ends_well(
      1, test_case,
      {{"SIMMPI_FAIL", "Init_thread:1"}, {"HVD_TEST_SAYS", "MPI_Init_thread failed with error 15 of MPICH 5.0.2: simulated failure"}});
  ends_well(1, test_case, {{"SIMMPI_FAIL", "Comm_rank:1"}, {"HVD_TEST_SAYS", "MPI_Comm_rank failed"}});
  ends_well(1, test_case, {{"SIMMPI_FAIL", "Comm_create_keyval:1"}, {"HVD_TEST_SAYS", "MPI_Comm_create_keyval failed"}});
  ends_well(1, test_case, {{"SIMMPI_SPAWNED", "1"}, {"HVD_TEST_SAYS", "was started by MPI_Comm_spawn"}});
  ends_well(1, test_case, {{"SIMMPI_VERSION", "LAM 7.1"}, {"HVD_TEST_SAYS", "says that it is 'LAM 7.1'"}});
}

TEST_CASE("rank: the program has begun MPI" * doctest::skip()) {
  arrive();
  auto* begin = mpi_function<int(int*, char***, int, int*)>("MPI_Init_thread");
  int provided = 0;
  REQUIRE(begin(nullptr, nullptr, 3, &provided) == 0);
  Session* session = nullptr;
  const Status status = testing::open(&session);
  if (number_of("SIMMPI_LEVEL") < 2) {
    CHECK(status.code() == Code::invalid_argument);
    CHECK(contains(status.message(), "in flight, got MPI_THREAD_FUNNELED"));
    CHECK(mpi_function<int()>("MPI_Finalize")() == 0);
    return;
  }
  REQUIRE(status.ok());
  CHECK_FALSE(session->ours());
  CHECK(session->finish(5));  // leaves MPI to the program
  CHECK(session->usable().ok());
  CHECK(mpi_function<int()>("MPI_Finalize")() == 0);
  const Status used = session->use([] { return Status(); });
  CHECK(contains(used.message(), "the program has called MPI_Finalize"));
  CHECK(contains(testing::open(&session).message(), "the program has called MPI_Finalize"));
}

TEST_CASE("a program that has begun MPI itself ends it, and needs a level that lets us in") {
  for (const char* level : {"1", "2", "3"}) ends_well(1, "rank: the program has begun MPI", {{"SIMMPI_LEVEL", level}});
}

TEST_CASE("rank: MPI_Comm_create_group does not return" * doctest::skip()) {
  const int me = arrive();
  Session* session = nullptr;
  REQUIRE(testing::open(&session).ok());
  if (me == 1) return;  // has exited
  Handle comm = 0;
  int looks = 0;
  const auto begin = Clock::now();
  const Status status = session->communicator({0, 1, 2}, never(&looks), &comm);
  CHECK(status.code() == Code::peer_lost);
  CHECK(status.message() == "rank 1 was lost");
  CHECK(looks > 20);
  CHECK(since(begin) < 10);
  // A blocked call cannot be interrupted: no other function may be called, and MPI is not finalized.
  CHECK(contains(session->usable().message(), "in a call that cannot be interrupted (rank 1 was lost)"));
  CHECK_FALSE(session->use([] { return Status(); }).ok());
  CHECK_FALSE(session->communicator({0, 2}, always, &comm).ok());
  CHECK(session->finish(5));
}

TEST_CASE("a rank that is lost while a communicator is made does not keep the others") {
  for (const char* level : {"1", "2", "3"}) ends_well(3, "rank: MPI_Comm_create_group does not return", {{"SIMMPI_LEVEL", level}});
}

TEST_CASE("rank: a communicator cannot be made" * doctest::skip()) {
  arrive();
  Session* session = nullptr;
  REQUIRE(testing::open(&session).ok());
  Handle comm = 0;
  const Status status = session->communicator({0}, always, &comm);
  CHECK(status.code() == Code::peer_lost);
  CHECK(contains(status.message(), "failed with error 15"));
  CHECK(session->communicator({0}, always, &comm).ok());
  CHECK(session->finish(5));
}

TEST_CASE("a communicator that cannot be made is an error, and the next attempt another one") {
  for (const char* call : {"Comm_group:1", "Group_incl:1", "Comm_create_group:1"})
    ends_well(1, "rank: a communicator cannot be made", {{"SIMMPI_FAIL", call}});
}

TEST_CASE("rank: MPI_Finalize waits" * doctest::skip()) {
  const int me = arrive();
  Session* session = nullptr;
  REQUIRE(testing::open(&session).ok());
  if (me == 1) {
    if (variable("HVD_TEST_LOST") == "1") return;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    CHECK(session->finish(20));
    return;
  }
  CHECK_FALSE(session->finish(0.1));
  CHECK_FALSE(session->finish(0));
  if (variable("HVD_TEST_LOST") == "1") {
    CHECK_FALSE(session->finish(0.5));
  } else {
    CHECK(session->finish(20));
    CHECK(session->finish(0));
  }
}

TEST_CASE("who waits in MPI_Finalize can look around meanwhile") {
  for (const char* lost : {"0", "1"}) {
    for (const char* level : {"1", "3"}) ends_well(2, "rank: MPI_Finalize waits", {{"HVD_TEST_LOST", lost}, {"SIMMPI_LEVEL", level}});
  }
}
