// Checks by a rank before it requests an operation; negotiate_test.cc covers agreement between ranks.
#include "agree/validate.h"

#include <doctest/doctest.h>

#include "../contains.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

const std::vector<int> kMembers = {0, 1, 2};

Request request_like(Kind kind, DType d, ReduceOp op) {
  Request q;
  q.kind = kind;
  q.name = "x";
  q.dtype = d;
  q.op = op;
  q.shape = {3};
  return q;
}

std::string refusal(const Request& q) {
  const Status s = check_arguments(q, kMembers);
  if (!s.ok()) CHECK(s.code() == Code::invalid_argument);
  return s.message();
}

}  // namespace

TEST_CASE("bool takes no average and no scale factors, whichever of the two it is") {
  for (Kind kind : {Kind::allreduce, Kind::reducescatter}) {
    Request q = request_like(kind, DType::boolean, ReduceOp::sum);
    CHECK(refusal(q) == "");
    q.prescale = 0.5;
    CHECK(refusal(q) == std::string(name_of(kind)) + " 'x': prescale and postscale factors must be 1 for dtype bool, got 0.5 and 1");
    q.prescale = 1;
    q.postscale = 2;
    CHECK(contains(refusal(q), "must be 1 for dtype bool, got 1 and 2"));
    CHECK(contains(refusal(request_like(kind, DType::boolean, ReduceOp::average)),
                   "op must be Sum, Min, Max or Product for dtype bool, got Average"));
    // Other dtypes are accepted, and other operations ignore them.
    q.dtype = DType::int32;
    q.prescale = 3;
    CHECK(refusal(q) == "");
  }
  Request gather = request_like(Kind::allgather, DType::boolean, ReduceOp::sum);
  gather.prescale = 2;
  CHECK(refusal(gather) == "");
}

TEST_CASE("Adasum takes floats on a power of two of ranks, allreduce only") {
  Request q = request_like(Kind::allreduce, DType::int32, ReduceOp::adasum);
  CHECK(contains(refusal(q), "for op Adasum, got int32"));
  q.dtype = DType::boolean;
  CHECK(contains(refusal(q), "for op Adasum, got bool"));
  q.dtype = DType::float32;
  CHECK(contains(refusal(q), "a power of two for op Adasum, got 3"));
  CHECK(check_arguments(q, {0, 1}).ok());
  q.kind = Kind::reducescatter;
  CHECK(contains(refusal(q), "op must be Average or Sum, got Adasum"));
}

TEST_CASE("wire formats are for float32, Average and Sum, allreduce") {
  struct Case {
    Kind kind;
    DType dtype;
    ReduceOp op;
    const char *value, *accepted;
  };
  for (const Case& c : {Case{Kind::allreduce, DType::float64, ReduceOp::sum, "got float64", "dtype must be float32"},
                        Case{Kind::allreduce, DType::float32, ReduceOp::max, "got Max", "op must be Average or Sum"},
                        Case{Kind::reducescatter, DType::float32, ReduceOp::sum, "reducescatter", "only allreduce"}}) {
    Request q = request_like(c.kind, c.dtype, c.op);
    q.wire = WireFormat::int8;
    for (const char* part : {"int8", c.value, c.accepted}) CHECK_MESSAGE(contains(refusal(q), part), refusal(q));
  }
}

TEST_CASE("alltoall: one split for each rank, none negative, together no more than the rows") {
  Request q = request_like(Kind::alltoall, DType::int32, ReduceOp::sum);
  q.splits = {1, 0, 2};
  CHECK(refusal(q) == "");
  q.splits = {1, 0, 1};  // some rows may remain unsent
  CHECK(refusal(q) == "");
  q.splits = {1, 1, 2};
  CHECK(contains(refusal(q), "at most the 3 rows of the tensor, got [1, 1, 2], together 4"));
  q.splits = {4, -1, 0};
  CHECK(contains(refusal(q), "splits must be 0 or more, got [4, -1, 0]"));
  q.splits = {1, 2};
  CHECK(contains(refusal(q), "splits must have one entry for each of the 3 ranks, got 2"));
}

TEST_CASE("process sets and roots: at the edges of what is accepted") {
  Request q = request_like(Kind::add_set, DType::int32, ReduceOp::sum);
  for (const std::vector<int64_t>& good : {std::vector<int64_t>{0}, {2}, {0, 2}, {0, 1, 2}}) {
    q.splits = good;
    CHECK(refusal(q) == "");
  }
  for (const std::vector<int64_t>& bad : {std::vector<int64_t>{}, {3}, {-1}, {0, 0}, {1, 0}, {0, 1, 1}}) {
    q.splits = bad;
    CHECK(contains(refusal(q), "ascending, none twice"));
  }
  q.kind = Kind::remove_set;
  for (const std::vector<int64_t>& good : {std::vector<int64_t>{0}, {UINT32_MAX}}) {
    q.splits = good;
    CHECK(refusal(q) == "");
  }
  for (const std::vector<int64_t>& bad : {std::vector<int64_t>{}, {-1}, {int64_t{UINT32_MAX} + 1}, {1, 2}}) {
    q.splits = bad;
    CHECK(contains(refusal(q), "must be the id of one process set"));
  }
  q = request_like(Kind::broadcast, DType::float32, ReduceOp::sum);
  q.root = 2;
  CHECK(refusal(q) == "");
  q.root = 3;
  CHECK(contains(refusal(q), "root rank must be one of the process set's ranks [0, 1, 2], got 3"));
}
