// Whole engines, one thread per rank: every kind of operation, names, groups, errors, waits.
#include <doctest/doctest.h>

#include "../contains.h"
#include "everywhere.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("every kind of operation, at every world size") {
  everywhere([](Program& p) {
    const int n = p.size;
    p.equal(p.sum("sum", p.rank + 1, 1000), total(n), "allreduce");
    p.equal(p.sum("", p.rank + 1), total(n), "unnamed allreduce");
    p.sum("empty", 1, 0);
    p.barrier();

    // allgather: rank r has r % 3 rows of two.
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

// tests/core/agree covers the possible disagreements and their messages.
TEST_CASE("ranks that disagree: an error for everybody that names both and their values, and the next operation works") {
  for (Layout layout : kLayouts) {
    for (int steps : {0, 8}) {  // without and with a schedule before
      check_ranks(3, {layout, crowded()}, [&](Program& p) {
        for (const bool shape : {false, true}) {
          for (int i = 0; i < steps; ++i) p.equal(p.sum("x", 1), 3, "sum");
          Request q = Program::request(p.rank == 1 && !shape ? Kind::broadcast : Kind::allreduce, "x", {p.rank == 1 && shape ? 2 : 4});
          const Status s = p.finish(*p.submit(q, Program::bytes_of(std::vector<int32_t>(4, 1))));
          p.expect(s.code() == Code::mismatch, s.message());
          for (const char* part : {"'x'", "rank 0", "rank 1", shape ? "[4]" : "allreduce", shape ? "[2]" : "broadcast"})
            p.expect(contains(s.message(), part), std::string("'") + part + "' is not in: " + s.message());
          p.equal(p.sum("x", 2), 6, "afterwards");
        }
      });
    }
  }
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
