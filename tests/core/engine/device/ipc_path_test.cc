// Operations on tensors of GPUs in each other's memory, over the simulated driver; ranks that have joined: programs_test.cc. Ranks are
// threads and share a GPU; tests/torch/test_shared_gpu.py uses processes.
#include "engine/device/ipc_path.h"

#include <doctest/doctest.h>

#include "collectives/elements.h"
#include "engine/device/ipc.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

using Data = std::vector<std::byte>;

struct Call {
  Kind kind;
  DType dtype;
  ReduceOp op;
  std::vector<int64_t> shape;
  double prescale = 1, postscale = 1;
  bool in_place = true;
};

// For two and four ranks, some of the calls for three.
std::vector<Call> calls(int size) {
  std::vector<Call> all;
  const std::vector<int64_t> sizes{1, 130, 1003};
  for (DType d : kAllDTypes) {
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      if (d == DType::boolean && op == ReduceOp::average) continue;
      const int64_t n = sizes[all.size() % 3];
      all.push_back({Kind::allreduce, d, op, {n}, 1, 1, all.size() % 2 == 0});
      if (is_float(d)) all.push_back({Kind::allreduce, d, op, {n}, 0.3, 1.7, all.size() % 2 == 0});
      if (op != ReduceOp::sum && op != ReduceOp::average) continue;
      all.push_back({Kind::reducescatter, d, op, {n, 3}, is_float(d) ? 0.7 : 1, 1, false});
    }
    all.push_back({Kind::broadcast, d, ReduceOp::sum, {77}, 1, 1, false});
  }
  for (int64_t n : {int64_t{0}, int64_t{(2 << 20) / 4}, int64_t{700001}, int64_t{2700001}}) {
    for (Kind kind : {Kind::allreduce, Kind::broadcast, Kind::reducescatter})
      all.push_back({kind, DType::float32, ReduceOp::sum, {n}, 1, 1, kind != Kind::reducescatter});
  }
  if (size == 3) return all;
  std::vector<Call> some;
  for (size_t i = static_cast<size_t>(size) % 3; i < all.size(); i += 3) some.push_back(all[i]);
  return some;
}

Request request(const Call& c, const std::string& name) {
  Request q = Program::request(c.kind, name, c.shape, c.dtype);
  q.op = c.op;
  q.prescale = c.prescale;
  q.postscale = c.postscale;
  q.root = c.kind == Kind::broadcast ? 1 : 0;
  return q;
}

size_t output_bytes(const Call& c, const Program& p) {
  size_t row = size_of(c.dtype);
  for (size_t i = 1; i < c.shape.size(); ++i) row *= static_cast<size_t>(c.shape[i]);
  const int64_t rows = c.shape[0], extra = p.rank < rows % p.size ? 1 : 0;
  return static_cast<size_t>(c.kind == Kind::reducescatter ? rows / p.size + extra : rows) * row;
}

// Every result of every rank, a few operations at a time so that they are fused.
std::vector<Data> results(EngineWorld& world, std::string* wrong) {
  std::vector<Data> out(static_cast<size_t>(world.size()));
  *wrong = run(world, [&](Program& p) {
    GpuProgram g(p, 0);
    const std::vector<Call> all = calls(p.size);
    for (size_t first = 0; first < all.size(); first += 5) {
      std::vector<OnGpu> tasks;
      for (size_t i = first; i < std::min(first + 5, all.size()); ++i) {
        size_t n = 1;
        for (int64_t d : all[i].shape) n *= static_cast<size_t>(d);
        const size_t bytes = all[i].in_place ? 0 : output_bytes(all[i], p);
        const bool nothing = !all[i].in_place && bytes == 0;
        tasks.push_back(g.submit(request(all[i], "t" + std::to_string(i)),
                                 numbers(all[i].dtype, n, static_cast<unsigned>(100 * i) + static_cast<unsigned>(p.rank)), bytes));
        if (nothing) tasks.back().bytes = 0;
      }
      for (OnGpu& task : tasks) {
        const Data some = g.result(task);
        Data& own = out[static_cast<size_t>(p.rank)];
        own.insert(own.end(), some.begin(), some.end());
      }
    }
  });
  return out;
}

}  // namespace

TEST_CASE("ranks that share a GPU get the bits that they get by way of the host: every type, operation and size") {
  for (int size : {2, 3, 4}) {
    CAPTURE(size);
    std::vector<Data> by_ipc, by_host;
    std::string wrong;
    {
      EngineWorld world(size, shared(true));
      const uint64_t before = launches();
      by_ipc = results(world, &wrong);
      CHECK(wrong == "");
      CHECK(launches() > before + 100);
    }
    {
      EngineWorld world(size, shared(false));
      const uint64_t before = launches();
      by_host = results(world, &wrong);
      CHECK(wrong == "");
      CHECK(launches() == before);
    }
    for (size_t rank = 0; rank < by_ipc.size(); ++rank) CHECK(by_ipc[rank] == by_host[rank]);
  }
}

TEST_CASE("process sets share their ranks' buffers, and what cannot be done so goes by way of the host, among the rest") {
  check_on_gpus(4, shared(true), [](Program& p, GpuProgram& g) {
    const uint32_t even = p.add_set({0, 2}), low = p.add_set({0, 1, 2});
    for (int step = 0; step < 20; ++step) {
      std::vector<std::pair<OnGpu, float>> tasks;
      const auto add = [&](uint32_t set, const std::string& name, size_t n, float expected) {
        Request q = Program::request(Kind::allreduce, name, {static_cast<int64_t>(n)}, DType::float32);
        q.op = ReduceOp::sum;
        q.set = set;
        tasks.emplace_back(g.submit(q, Program::bytes_of(std::vector<float>(n, static_cast<float>(p.rank + step)))), expected);
      };
      const auto s = static_cast<float>(step);
      if (p.rank % 2 == 0) add(even, "e", 600000, 2 + 2 * s);
      if (p.rank < 3) add(low, "l", 5000, 3 + 3 * s);
      add(0, "w", 700, 6 + 4 * s);
      OnGpu gathered = g.submit(Program::request(Kind::allgather, "a", {1}, DType::int32), Program::bytes_of(std::vector<int32_t>{p.rank}));
      for (auto& [task, expected] : tasks) {
        for (float value : g.values<float>(task)) p.expect(value == expected, "sum of " + task.op->request.name);
      }
      p.expect(g.values<int32_t>(gathered) == std::vector<int32_t>{0, 1, 2, 3}, "allgather");
    }
    p.remove_set(low);
    p.remove_set(even);
  }, 0);
}
