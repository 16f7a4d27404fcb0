#include "mpi/mpi_thread.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "contains.h"
#include "mpi/library.h"

using namespace hvd;
using namespace hvd::mpi;
using hvd::testing::contains;

TEST_CASE("a clerk does all on one thread, and whoever asks gets what it has made") {
  MpiThread mpi_thread;
  std::thread::id first, second;
  int created = 0;
  CHECK(mpi_thread.run([&] { first = std::this_thread::get_id(); }));
  CHECK(mpi_thread.run([&] { second = std::this_thread::get_id(), created = 3; }, 10));
  CHECK(first == second);
  CHECK(first != std::this_thread::get_id());
  CHECK(created == 3);
}

TEST_CASE("what does not end is left behind in time") {
  MpiThread mpi_thread;
  auto go = std::make_shared<std::atomic<bool>>(false);
  CHECK_FALSE(mpi_thread.run([go] {
    while (!go->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }, 0.02));
  go->store(true);
}

TEST_CASE("a library that is not there, or is none of MPI, is named") {
  const Library* library = nullptr;
  Status status = load("/nowhere/libmpi.so.40", &library);
  CHECK(status.code() == Code::invalid_argument);
  CHECK(contains(status.message(), "/nowhere/libmpi.so.40"));
  status = load("libm.so.6", &library);
  CHECK(status.code() == Code::invalid_argument);
  CHECK(contains(status.message(), "MPI_Get_library_version"));
  CHECK(library == nullptr);
}
