// Device operations in a schedule on one rank, whose halves are submitted at different times and end after
// it. Without a device: the schedule is made by hand, and the test acts as the engine.
#include <doctest/doctest.h>

#include "contains.h"
#include "engine/submissions.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

Request request(const std::string& name, DeviceKind device) {
  Request q;
  q.kind = Kind::allreduce;
  q.name = name;
  q.shape = {4};
  q.device = device;
  return q;
}

OperationPtr on_gpu(const std::string& name, uint64_t carried = 0) {
  auto op = std::make_shared<Operation>();
  op->request = request(name, DeviceKind::cuda);
  op->on_device = std::make_unique<OnDevice>();
  op->on_device->carried = carried;
  return op;
}

OperationPtr half(const std::string& name, uint64_t carries) {
  auto op = std::make_shared<Operation>();
  op->request = request(name + "/staged", DeviceKind::host);
  op->carries = carries;
  op->on_done = [](Operation&, void*) {};
  return op;
}

// A rank that follows a schedule of x, y and, in one bucket, their second halves.
struct Rank {
  Submissions submissions{0, 2};
  std::vector<Request> requests{request("x", DeviceKind::cuda), request("y", DeviceKind::cuda), request("x/staged", DeviceKind::host),
                                request("y/staged", DeviceKind::host)};
  bool wake = false;

  Rank() {
    auto schedule = std::make_shared<Schedule>();
    schedule->id = 1;
    std::vector<const Request*> own;
    for (const Request& q : requests) {
      schedule->entries.push_back({0, q.kind, q.name, false});
      own.push_back(&q);
    }
    for (const std::vector<uint32_t>& entries : std::vector<std::vector<uint32_t>>{{0}, {1}, {2, 3}}) {
      Response part;
      part.kind = Kind::allreduce;
      for (uint32_t e : entries) {
        part.names.push_back(requests[e].name);
        part.shapes.push_back(requests[e].shape);
      }
      schedule->buckets.push_back({{part}, entries});
    }
    submissions.begin_schedule(std::make_unique<ScheduleCursor>(schedule, own), {});
  }
  // operations waiting in the schedule keep themselves alive
  ~Rank() { submissions.end(Status(Code::shutdown, "the test is over")); }
  Status submit(const OperationPtr& op) { return submissions.submit(op, &wake); }
  // The engine begins with the next bucket.
  void start() {
    std::vector<Operation*> operations;
    std::vector<OperationPtr> keep;
    submissions.take_bucket(&operations, &keep);
    started.insert(started.end(), keep.begin(), keep.end());
  }
  std::vector<OperationPtr> started;
};

}  // namespace

TEST_CASE("who waits for an operation on a device leaves a schedule in which its second half waits for what only the program can submit") {
  Rank rank;
  const OperationPtr x = on_gpu("x", 7), x_staged = half("x", 7);
  REQUIRE(rank.submit(x).ok());
  rank.start();
  rank.submissions.expect(1);
  CHECK(!rank.submissions.nudge(*x, false));  // its data are being transferred
  REQUIRE(rank.submit(x_staged).ok());
  CHECK(!rank.submissions.nudge(*on_gpu("z", 8), false));
  CHECK(!rank.submissions.progress().deviated);
  CHECK(rank.submissions.nudge(*x, false));
  CHECK(rank.submissions.progress().stuck);
}

TEST_CASE("it stays where the engine will submit what is missing, but not for ever") {
  Rank rank;
  const OperationPtr x = on_gpu("x", 7), y = on_gpu("y", 8);
  REQUIRE(rank.submit(x).ok());
  REQUIRE(rank.submit(y).ok());
  rank.start();
  rank.submissions.expect(1);
  REQUIRE(rank.submit(half("x", 7)).ok());
  CHECK(!rank.submissions.nudge(*x, false));  // y waits for other ranks only
  rank.start();
  rank.submissions.expect(1);
  CHECK(!rank.submissions.nudge(*x, false));  // y's data are being transferred
  bool waiting = false;
  CHECK(!rank.submissions.nudge_unattended(0, 1000, &waiting));
  CHECK(waiting);
  CHECK(rank.submissions.nudge(*x, true));
}

TEST_CASE("the name of an operation on a device is taken until it is done, also when its schedule has ended before") {
  for (bool ended : {false, true}) {
    CAPTURE(ended);
    Rank rank;
    REQUIRE(rank.submit(on_gpu("x", 7)).ok());
    rank.start();
    if (ended) CHECK(rank.submissions.end_schedule().empty());
    CHECK(contains(rank.submit(on_gpu("x")).message(), "'x' is still in flight"));
    rank.submissions.release({rank.started.front().get()});
    CHECK(rank.submit(on_gpu("x")).ok());
  }
}
