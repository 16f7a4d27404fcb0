#include "mpi/abi.h"

#include <doctest/doctest.h>

#include <map>

#include "contains.h"

using namespace hvd;
using namespace hvd::mpi;
using hvd::testing::contains;

namespace {

void* nothing(const char*) { return nullptr; }

// A library that exports every requested name, each at its own address.
Lookup everything(std::map<std::string, char>* exported) {
  return [exported](const char* name) -> void* { return &(*exported)[name]; };
}

Abi make(Family family) {
  Abi abi;
  std::map<std::string, char> exported;
  REQUIRE(make_abi(family, family == Family::open_mpi ? everything(&exported) : nothing, &abi).ok());
  return abi;
}

}  // namespace

TEST_CASE("the family is what a library exports, else what its file is called") {
  std::map<std::string, char> exported;
  CHECK(family_of("/opt/lib/libmpi.so.40", everything(&exported)) == Family::open_mpi);
  CHECK(family_of("/opt/lib/libmpi.so.12", nothing) == Family::mpich);
  CHECK(family_of("/opt/lib/libmpi_cray.so.12", nothing) == Family::mpich);
  CHECK(family_of("/opt/lib/libmpi_abi.so.1", nothing) == Family::standard);
  CHECK(family_of("libmpi_abi.so.0", nothing) == Family::standard);
  // A folder's name is no evidence.
  CHECK(family_of("/opt/mpi_abi/lib/libmpi.so.12", nothing) == Family::mpich);
}

TEST_CASE("what a library says of itself has to fit, or all numbers would be wrong") {
  CHECK(check_version(Family::open_mpi, "l", "Open MPI v5.0.11, package: x").ok());
  CHECK(check_version(Family::open_mpi, "l", "IBM Spectrum MPI 10.4").ok());
  CHECK(check_version(Family::mpich, "l", "MPICH Version:      5.0.2\nMPICH ABI: 18").ok());
  CHECK(check_version(Family::mpich, "l", "Intel(R) MPI Library 2021.13 for Linux* OS").ok());
  CHECK(check_version(Family::mpich, "l", "MPI VERSION    : CRAY MPICH version 8.1.28").ok());
  CHECK(check_version(Family::standard, "l", "anybody's").ok());
  const Status other = check_version(Family::mpich, "/opt/libmpi.so", "LAM 7.1\nsecond line");
  CHECK(other.code() == Code::invalid_argument);
  CHECK(contains(other.message(), "/opt/libmpi.so"));
  CHECK(contains(other.message(), "'LAM 7.1'"));
}

TEST_CASE("a library that does not fit the launcher is known before it is begun") {
  const bool open_mpi = of_open_mpi("Open MPI v5.0.11, package: x"), mpich = of_open_mpi("MPICH Version:      5.0.2");
  CHECK(fits("Open MPI", open_mpi));
  CHECK(fits("MPICH", mpich));
  CHECK_FALSE(fits("Open MPI", mpich));
  CHECK_FALSE(fits("MPICH", open_mpi));
  CHECK(fits("", mpich));
  CHECK(fits("", open_mpi));
}

TEST_CASE("integers and wide floats have types and everything else has none") {
  for (const Family family : {Family::open_mpi, Family::mpich, Family::standard}) {
    const Abi abi = make(family);
    std::map<Handle, int> seen;
    for (const DType d :
         {DType::uint8, DType::int8, DType::uint16, DType::int16, DType::int32, DType::int64, DType::float32, DType::float64})
      ++seen[abi.type_of(d)];
    CHECK(seen.size() == 8);
    CHECK(seen.count(0) == 0);
    for (const DType d : {DType::float16, DType::bfloat16, DType::boolean}) CHECK(abi.type_of(d) == 0);
    seen.clear();
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) ++seen[abi.op_of(op)];
    CHECK(seen.size() == 4);
    CHECK(seen.count(0) == 0);
    CHECK(abi.op_of(ReduceOp::adasum) == 0);
  }
}

TEST_CASE("MPICH's types say their size, which guards against mistyped numbers") {
  const Abi abi = make(Family::mpich);
  const std::pair<Handle, size_t> sizes[] = {{abi.uint8, 1}, {abi.int8, 1},  {abi.uint16, 2},  {abi.int16, 2},
                                             {abi.int32, 4}, {abi.int64, 8}, {abi.float32, 4}, {abi.float64, 8}};
  for (const auto& [type, bytes] : sizes) CHECK(((type >> 8) & 0xff) == bytes);
  CHECK(abi.world == 0x44000000);
  CHECK(abi.status_ignore == reinterpret_cast<void*>(1));
  CHECK(make(Family::standard).status_ignore == nullptr);
}

TEST_CASE("a variable that an Open MPI does not export is named") {
  Abi abi;
  std::map<std::string, char> exported;
  const Lookup some = [&](const char* name) -> void* {
    return std::string(name) == "ompi_mpi_op_prod" ? nullptr : everything(&exported)(name);
  };
  const Status status = make_abi(Family::open_mpi, some, &abi);
  CHECK(status.code() == Code::internal);
  CHECK(contains(status.message(), "ompi_mpi_op_prod"));
}
