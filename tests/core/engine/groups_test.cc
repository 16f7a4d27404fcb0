// Groups in whole engines: they complete or fail as a whole, whatever else happens.
#include <doctest/doctest.h>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

struct Shape {
  const char* what;
  Kind kind;
  std::vector<DType> dtypes;  // of the first half, of the second
};
const Shape kShapes[] = {
    {"allgather", Kind::allgather, {DType::int32}},
    {"reducescatter", Kind::reducescatter, {DType::int32}},
    {"allreduce of two dtypes", Kind::allreduce, {DType::int32, DType::int64}},
};

// `hesitate`: pauses after so many members, so that this rank's engine may report its progress to the others.
std::vector<TaskPtr> submit_group(Program& p, const Shape& shape, const std::string& name, uint32_t members, uint32_t hesitate = 0) {
  std::vector<TaskPtr> tasks;
  for (uint32_t i = 0; i < members; ++i) {
    if (hesitate && i == hesitate) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const DType d = shape.dtypes[2 * i < members ? 0 : shape.dtypes.size() - 1];
    const int64_t n = p.size + static_cast<int64_t>(i % 3);
    Request q = Program::request(shape.kind, name.empty() ? "" : name + "." + std::to_string(i), {n}, d);
    q.group = name.empty() ? "unnamed" : name;
    q.group_size = members;
    const int value = p.rank + 1 + static_cast<int>(i);
    tasks.push_back(p.submit(std::move(q), d == DType::int64 ? Program::bytes_of(std::vector<int64_t>(n, value))
                                                             : Program::bytes_of(std::vector<int32_t>(n, value))));
  }
  return tasks;
}

void wait_for(Program& p, const Shape& shape, const std::vector<TaskPtr>& tasks) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    p.wait(*tasks[i]);
    const int64_t first = tasks[i]->op->request.dtype == DType::int64 ? tasks[i]->at<int64_t>(0) : tasks[i]->at<int32_t>(0);
    const int64_t want = shape.kind == Kind::allgather ? 1 + static_cast<int64_t>(i) : total(p.size) + p.size * static_cast<int64_t>(i);
    p.equal(first, want, tasks[i]->name);
  }
}

}  // namespace

TEST_CASE("a schedule that ends while ranks are in the middle of a group") {
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.what);
    for (Layout layout : kLayouts) {
      CAPTURE(name_of(layout));
      Settings settings = crowded();
      check_ranks(layout == Layout::pairs ? 4 : 2, {layout, settings}, [&](Program& p) {
        const bool last = p.rank == p.size - 1;
        for (uint32_t members : {8, 24, 8, 24, 8, 24, 8, 24, 8, 24}) {
          for (int step = 0; step < 12; ++step) wait_for(p, shape, submit_group(p, shape, "g", members));
          const auto tasks = submit_group(p, shape, "g", members, last ? members / 2 : 0);
          p.equal(p.sum("unrelated", 1), p.size, "unrelated");
          wait_for(p, shape, tasks);
        }
      });
    }
  }
}
