// Groups in whole engines: they are done or undone as a whole, whatever else happens.
#include <doctest/doctest.h>

#include <cmath>

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

// `hesitate`: after so many members for a moment, in which this rank's engine may tell the others how far it is.
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
      EngineWorld world(layout == Layout::pairs ? 4 : 2, {layout, settings});
      REQUIRE(run(world, [&](Program& p) {
        const bool last = p.rank == p.size - 1;
        for (uint32_t members : {8, 24, 8, 24, 8, 24, 8, 24, 8, 24}) {
          for (int step = 0; step < 12; ++step) wait_for(p, shape, submit_group(p, shape, "g", members));
          const auto tasks = submit_group(p, shape, "g", members, last ? members / 2 : 0);
          p.equal(p.sum("unrelated", 1), p.size, "unrelated");
          wait_for(p, shape, tasks);
        }
      }) == "");
    }
  }
}

namespace {

// Rows of rank `rank` in tensor i, of which rows have two elements.
int64_t rows_of(size_t i, int rank) { return i == 2 ? 0 : i == 3 ? 20000 : static_cast<int64_t>(i) + 3 * rank; }

void gather_and_check(Program& p) {
  std::vector<TaskPtr> tasks;
  for (size_t i = 0; i < 6; ++i) {
    Request q = Program::request(Kind::allgather, "t" + std::to_string(i), {rows_of(i, p.rank), 2});
    q.group = "g";
    q.group_size = 6;
    tasks.push_back(
        p.submit(std::move(q), Program::bytes_of(std::vector<int32_t>(2 * rows_of(i, p.rank), static_cast<int32_t>(i) + 10 * p.rank))));
  }
  for (size_t i = 0; i < 6; ++i) {
    p.wait(*tasks[i]);
    size_t at = 0;
    for (int r = 0; r < p.size; ++r) {
      p.equal(tasks[i]->op->sizes.at(r), rows_of(i, r), "rows");
      for (int64_t k = 0; k < 2 * rows_of(i, r); ++k)
        p.equal(tasks[i]->at<int32_t>(at++), static_cast<int32_t>(i) + 10 * r, tasks[i]->name);
    }
    p.equal(tasks[i]->out.size(), at * sizeof(int32_t), "bytes");
  }
}

void scatter_and_check(Program& p, double prescale, ReduceOp op) {
  const auto total_rows = [](size_t i) { return i == 2 ? 0 : i == 3 ? 30000 : static_cast<int64_t>(5 * i + 1); };
  std::vector<TaskPtr> tasks;
  for (size_t i = 0; i < 6; ++i) {
    Request q = Program::request(Kind::reducescatter, "s" + std::to_string(i), {total_rows(i), 2}, DType::float32);
    q.op = op;
    q.prescale = prescale;
    q.group = "h";
    q.group_size = 6;
    std::vector<float> data;
    for (int64_t k = 0; k < 2 * total_rows(i); ++k) data.push_back(static_cast<float>((p.rank + 1) * (k % 1000)));
    tasks.push_back(p.submit(std::move(q), Program::bytes_of(data)));
  }
  for (size_t i = 0; i < 6; ++i) {
    p.wait(*tasks[i]);
    const int64_t n = total_rows(i), mine = n / p.size + (p.rank < n % p.size);
    const int64_t before = n / p.size * p.rank + std::min<int64_t>(p.rank, n % p.size);
    const double factor = prescale * total(p.size) / (op == ReduceOp::average ? p.size : 1);
    for (int64_t k = 0; k < 2 * mine; ++k) {
      const auto want = static_cast<float>(factor * static_cast<double>((2 * before + k) % 1000));
      p.expect(std::abs(tasks[i]->at<float>(k) - want) <= 1e-4f * std::abs(want), tasks[i]->name + " element " + std::to_string(k));
    }
  }
}

}  // namespace

TEST_CASE("groups of allgathers and of reducescatters are one operation each, with and without a schedule") {
  for (Layout layout : kLayouts) {
    CAPTURE(name_of(layout));
    for (int size : {1, 2, 3, 4, 5}) {
      CAPTURE(size);
      EngineWorld world(size, {layout, crowded()});
      REQUIRE(run(world, [](Program& p) {
        gather_and_check(p);
        scatter_and_check(p, 1, ReduceOp::sum);
      }) == "");
      if (size > 1) CHECK(world.stats().responses <= 2);
      REQUIRE(run(world, [](Program& p) {
        for (int step = 0; step < 8; ++step) {
          gather_and_check(p);
          scatter_and_check(p, 0.5, step < 5 ? ReduceOp::average : ReduceOp::sum);
        }
      }) == "");
      if (size > 1) CHECK(world.stats().scheduled > 0);
    }
  }
}
