// Whole engines, a thread a rank: every kind of operation, orders, names, groups, mistakes.
#include <doctest/doctest.h>

#include <atomic>
#include <random>

#include "../collectives/elements.h"
#include "../contains.h"
#include "everywhere.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Small whole numbers, exact in every dtype whatever the order; bools 0 or 1.
Buffer small_numbers(DType d, ReduceOp op, size_t n, int rank) {
  Buffer b(n * size_of(d));
  for (size_t i = 0; i < n; ++i) {
    const int v = op == ReduceOp::product ? ((static_cast<int>(i) + rank) % 4 == 0 ? 2 : 1) : (static_cast<int>(i) * 3 + rank * 5) % 7;
    if (is_float(d)) {
      put_float(d, b.data(), i, v);
    } else if (d == DType::boolean) {
      b[i] = std::byte{static_cast<uint8_t>(v & 1)};
    } else {
      const int64_t wide = v;
      std::memcpy(b.data() + i * size_of(d), &wide, size_of(d));
    }
  }
  return b;
}

}  // namespace

TEST_CASE("every kind of operation, at every world size") {
  everywhere([](Program& p) {
    const int n = p.size;
    p.equal(p.sum("sum", p.rank + 1, 1000), total(n), "allreduce");
    p.equal(p.sum("", p.rank + 1), total(n), "unnamed allreduce");
    p.sum("empty", 1, 0);
    p.barrier();

    // allgather: rank r brings r % 3 rows of two.
    const int rows = p.rank % 3;
    TaskPtr g = p.submit(Program::request(Kind::allgather, "gather", {rows, 2}), Program::bytes_of(std::vector<int32_t>(2 * rows, p.rank)));
    p.wait(*g);
    size_t at = 0;
    for (int r = 0; r < n; ++r) {
      p.equal(g->op->sizes.at(r), int64_t{r % 3}, "gathered rows");
      for (int i = 0; i < 2 * (r % 3); ++i) p.equal(g->at<int32_t>(at++), r, "gathered element");
    }
    p.equal(g->out.size(), at * 4, "gathered bytes");

    for (int root = 0; root < n; ++root) {
      Request q = Program::request(Kind::broadcast, "cast", {3000});
      q.root = root;
      TaskPtr b = p.submit(std::move(q), Program::bytes_of(std::vector<int32_t>(3000, p.rank)));
      p.wait(*b);
      p.equal(b->at<int32_t>(0), root, "broadcast");
      p.equal(b->at<int32_t>(2999), root, "broadcast's end");
    }

    // alltoall: rank r sends (r + i) % 3 rows to rank i.
    Request q = Program::request(Kind::alltoall, "all");
    std::vector<int32_t> send;
    for (int i = 0; i < n; ++i) {
      q.splits.push_back((p.rank + i) % 3);
      send.insert(send.end(), (p.rank + i) % 3, p.rank * 100 + i);
    }
    q.shape = {static_cast<int64_t>(send.size())};
    TaskPtr a = p.submit(std::move(q), Program::bytes_of(send));
    p.wait(*a);
    at = 0;
    for (int r = 0; r < n; ++r) {
      p.equal(a->op->sizes.at(r), int64_t{(r + p.rank) % 3}, "rows received");
      for (int i = 0; i < (r + p.rank) % 3; ++i) p.equal(a->at<int32_t>(at++), r * 100 + p.rank, "exchanged element");
    }

    // reducescatter of n + 1 rows: the first rank gets two.
    TaskPtr s = p.submit(Program::request(Kind::reducescatter, "scatter", {n + 1, 5}),
                         Program::bytes_of(std::vector<int32_t>(5 * (n + 1), p.rank + 1)));
    p.wait(*s);
    for (int i = 0; i < 5 * ((n + 1) / n + (p.rank < (n + 1) % n)); ++i) p.equal(s->at<int32_t>(i), total(n), "scattered element");
    p.equal(p.sum("sum", 1), n, "a name again");
  });
}

TEST_CASE("every dtype and reduction, several lengths at once") {
  constexpr ReduceOp ops[] = {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product, ReduceOp::average};
  for (Layout layout : kLayouts) {
    for (int size : {2, 3, 5}) {
      CAPTURE(name_of(layout));
      CAPTURE(size);
      EngineWorld world(size, {layout, crowded()});
      CHECK(run(world, [&](Program& p) {
        struct Case {
          DType d;
          ReduceOp op;
          size_t n;
          TaskPtr task;
        };
        std::vector<Case> cases;
        for (DType d : kAllDTypes) {
          for (ReduceOp op : ops) {
            if (d == DType::boolean && op == ReduceOp::average) continue;
            for (size_t n : {1, 37, 5000}) {
              Request q = Program::request(Kind::allreduce, std::string(name_of(d)) + std::string(name_of(op)) + std::to_string(n),
                                           {static_cast<int64_t>(n)}, d);
              q.op = op;
              cases.push_back({d, op, n, p.submit(std::move(q), small_numbers(d, op, n, p.rank))});
            }
          }
        }
        for (Case& c : cases) {
          p.wait(*c.task);
          std::vector<Buffer> inputs;
          std::vector<const std::byte*> sources;
          for (int r = 0; r < p.size; ++r) inputs.push_back(small_numbers(c.d, c.op, c.n, r));
          for (auto& b : inputs) sources.push_back(b.data());
          const bool average = c.op == ReduceOp::average;
          const Buffer want = reference(c.d, average ? ReduceOp::sum : c.op, sources, c.n, {1, average ? p.size : 1});
          if (average && is_float(c.d)) {  // division and multiplication by the inverse round differently
            for (size_t i = 0; i < c.n; ++i) {
              const double x = get_float(c.d, c.task->out.data(), i), y = get_float(c.d, want.data(), i);
              p.expect(std::abs(x - y) <= 0.01 * std::abs(y), "average of '" + c.task->name + "'");
            }
          } else {
            p.expect(c.task->out == want, "result of '" + c.task->name + "'");
          }
        }
      }) == "");
    }
  }
}

TEST_CASE("scale factors before and after") {
  everywhere([](Program& p) {
    Request q = Program::request(Kind::allreduce, "x", {3}, DType::float32);
    q.prescale = 0.5;
    q.postscale = 4;
    TaskPtr t = p.submit(q, Program::bytes_of<float>({2, 4, 8}));
    p.wait(*t);
    for (int i = 0; i < 3; ++i) p.equal(t->at<float>(i), static_cast<float>((2 << i) * 0.5 * 4 * p.size), "scaled sum");
    q.kind = Kind::reducescatter;
    q.shape = {p.size};
    t = p.submit(q, Program::bytes_of(std::vector<float>(p.size, 3)));
    p.wait(*t);
    p.equal(t->at<float>(0), 6.0f * static_cast<float>(p.size), "scaled reducescatter");
  });
}

TEST_CASE("any order of submission, in any order of waiting") {
  for (size_t threshold : {size_t{0}, size_t{64}, size_t{128} << 20}) {
    Settings settings = crowded();
    settings.fusion_threshold = threshold;
    CAPTURE(threshold);
    everywhere([](Program& p) {
      std::mt19937 random(p.rank + 17);
      for (int step = 0; step < 4; ++step) {
        std::vector<int> order(30);
        for (int i = 0; i < 30; ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        std::vector<TaskPtr> tasks(30);
        for (int i : order) tasks[i] = p.sum_async("t" + std::to_string(i), (p.rank + 1) * (i + 1), 1 + i * 7);
        std::shuffle(order.begin(), order.end(), random);
        for (int i : order) {
          p.wait(*tasks[i]);
          p.equal(tasks[i]->at<int32_t>(i * 7), total(p.size) * (i + 1), "sum " + std::to_string(i));
        }
      }
    }, settings);
  }
}

TEST_CASE("groups complete together and survive a bad member") {
  for (bool apart : {false, true}) {
    Settings settings = crowded();
    settings.groups_apart = apart;
    everywhere([](Program& p) {
      for (int step = 0; step < 5; ++step) {
        std::vector<TaskPtr> tasks;
        for (int g = 0; g < 3; ++g) {
          for (int i = 0; i < 4; ++i) {
            Request q = Program::request(Kind::allreduce, "g" + std::to_string(g) + "." + std::to_string(i), {i + 1});
            q.group = "g" + std::to_string(g);
            q.group_size = 4;
            const bool bad = step == 2 && g == 1 && i == 3;  // only this member, only in this step
            if (bad) q.shape = {p.rank + 1};
            tasks.push_back(p.submit(q, Program::bytes_of(std::vector<int32_t>(static_cast<size_t>(q.shape[0]), p.rank + 1))));
          }
        }
        for (size_t i = 0; i < tasks.size(); ++i) {
          const Status s = p.finish(*tasks[i]);
          if (step == 2 && i / 4 == 1 && p.size > 1) {
            p.expect(s.code() == Code::mismatch, "a group with a bad member: " + s.message());
          } else {
            p.expect(s.ok(), s.message());
            p.equal(tasks[i]->at<int32_t>(0), total(p.size), "sum");
          }
        }
      }
    }, settings);
  }
}

TEST_CASE("ranks that disagree: an error for everybody that names both and their values, and the next operation works") {
  struct Wrong {
    const char* what;
    std::function<void(Request&, int rank)> spoil;
    const char *left, *right;
  };
  const Wrong all[] = {
      {"dtype", [](Request& q, int r) { q.dtype = r == 1 ? DType::float32 : DType::int32; }, "int32", "float32"},
      {"shape", [](Request& q, int r) { q.shape = {r == 1 ? 2 : 4}; }, "[4]", "[2]"},
      {"op", [](Request& q, int r) { q.op = r == 1 ? ReduceOp::max : ReduceOp::sum; }, "Sum", "Max"},
      {"prescale", [](Request& q, int r) { q.prescale = r == 1 ? 2 : 1; }, "1", "2"},
      {"postscale", [](Request& q, int r) { q.postscale = r == 1 ? 2.5 : 1; }, "1", "2.5"},
      {"root",
       [](Request& q, int r) {
    q.kind = Kind::broadcast;
    q.root = r == 1 ? 1 : 0;
  }, "0", "1"},
      {"kind", [](Request& q, int r) { q.kind = r == 1 ? Kind::broadcast : Kind::allreduce; }, "allreduce", "broadcast"},
      {"row",
       [](Request& q, int r) {
    q.kind = Kind::allgather;
    q.shape = {1, r == 1 ? 2 : 3};
  }, "[1, 3]", "[1, 2]"},
  };
  for (Layout layout : kLayouts) {
    for (int steps : {0, 8}) {  // without and with a schedule before
      EngineWorld world(3, {layout, crowded()});
      CHECK(run(world, [&](Program& p) {
        for (const Wrong& w : all) {
          for (int i = 0; i < steps; ++i) p.equal(p.sum("x", 1), 3, "sum");
          Request q = Program::request(Kind::allreduce, "x", {4});
          w.spoil(q, p.rank);
          TaskPtr t = p.submit(q, Program::bytes_of(std::vector<int32_t>(4, 1)));
          const Status s = p.finish(*t);
          p.expect(s.code() == Code::mismatch, std::string(w.what) + " should be a mismatch: " + s.message());
          for (const char* part : {"'x'", "rank 0", "rank 1", w.left, w.right}) {
            p.expect(contains(s.message(), part), std::string(w.what) + ": '" + part + "' is not in: " + s.message());
          }
          p.equal(p.sum("x", 2), 6, "after a wrong " + std::string(w.what));
        }
      }) == "");
    }
  }
}

TEST_CASE("unlike unnamed operations are an error, and unnamed operations go on to match afterwards") {
  EngineWorld world(2, {Layout::one_node, crowded()});
  CHECK(run(world, [&](Program& p) {
    Request q = Program::request(p.rank ? Kind::broadcast : Kind::allreduce, "", {1});
    TaskPtr t = p.submit(q, Program::bytes_of<int32_t>({1}));
    const Status s = p.finish(*t);
    p.expect(s.code() == Code::mismatch && contains(s.message(), "allreduce") && contains(s.message(), "broadcast"), s.message());
    p.patience = 15;
    p.equal(p.sum("", 1), 2, "the next unnamed allreduce");
    q.kind = Kind::broadcast;
    p.wait(*p.submit(q, Program::bytes_of<int32_t>({1})));
  }) == "");
}

TEST_CASE("what cannot be asked for is refused at once and changes nothing") {
  everywhere([](Program& p) {
    TaskPtr held;
    if (p.rank == 0) held = p.sum_async("held", 1);
    auto refused = [&](Request q, const char* part) {
      TaskPtr t;
      const Status s = p.try_submit(std::move(q), std::vector<std::byte>(64), &t);
      p.expect(s.code() == Code::invalid_argument, std::string("accepted: ") + part);
      p.expect(contains(s.message(), part), std::string(part) + " is not in: " + s.message());
    };
    if (p.rank == 0 && p.size > 1) refused(Program::request(Kind::allreduce, "held", {1}), "still in flight");
    if (p.rank == 0) p.mark();
    Request q = Program::request(Kind::broadcast, "b", {1});
    q.root = p.size;
    refused(q, "root rank");
    q = Program::request(Kind::allreduce, "a", {1});
    q.set = 9;
    refused(q, "process set 9");
    q = Program::request(Kind::alltoall, "a", {2});
    q.splits.assign(p.size, 1);
    q.splits[0] = 7;
    refused(q, "splits");
    refused(Program::request(Kind::reducescatter, "g"), "dimension");
    q = Program::request(Kind::add_set, "");
    refused(q, "ranks");
    q.splits = {0, p.size};
    refused(q, "ranks");
    q.splits = {p.size - 1, 0};
    if (p.size > 1) refused(q, "ranks");
    refused(Program::request(Kind::remove_set, ""), "id");
    if (p.rank != 0) p.await_marks(1);
    if (p.rank != 0) held = p.sum_async("held", 1);
    p.wait(*held);
    p.equal(held->at<int32_t>(0), p.size, "the first one with the name");
  });
}

TEST_CASE("many small operations become one, unless fusion is off") {
  for (size_t threshold : {size_t{0}, size_t{1} << 20}) {
    Settings settings = crowded();
    settings.fusion_threshold = threshold;
    settings.cache_capacity = 0;
    settings.cycle_time = 0.05;
    EngineWorld world(2, {Layout::one_node, settings});
    CHECK(run(world, [&](Program& p) {
      std::vector<TaskPtr> tasks;
      for (int i = 0; i < 100; ++i) tasks.push_back(p.sum_async("t" + std::to_string(i), 1));
      for (auto& t : tasks) p.wait(*t);
    }) == "");
    const auto stats = world.stats(0);
    CHECK(stats.operations == 100);
    CHECK(stats.schedules == 0);
    if (threshold == 0) CHECK(stats.fused == 0);
    if (threshold > 0) CHECK(stats.fused > 50);
    CHECK(stats.bytes == 400);
  }
}
