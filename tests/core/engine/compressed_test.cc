// Allreduces with a wire format through whole engines: fused, in schedules, with residuals that carry over from step to step.
#include <doctest/doctest.h>

#include <random>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr int64_t kTensorSizes[] = {3, 256, 700, 5000};

struct Tensor {
  std::vector<float> in, out, residual;
  OperationPtr op;
};

Request request_for(int64_t n, int number, WireFormat wire) {
  Request q = Program::request(Kind::allreduce, "t" + std::to_string(number), {n}, DType::float32);
  q.op = ReduceOp::average;
  q.wire = wire;
  return q;
}

// `steps` steps of four tensors, as an optimizer does them; all results, one after the other.
std::vector<float> train(Program& p, WireFormat wire, int steps, bool feedback) {
  std::vector<float> results;
  std::vector<Tensor> tensors(std::size(kTensorSizes));
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (auto* v : {&tensors[t].in, &tensors[t].out, &tensors[t].residual}) v->resize(kTensorSizes[t]);
  }
  std::mt19937_64 random(77 + p.rank);
  std::normal_distribution<float> normal;
  for (int step = 0; step < steps; ++step) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      Tensor& x = tensors[t];
      for (float& v : x.in) v = normal(random);
      const Status s = p.engine.submit(request_for(kTensorSizes[t], static_cast<int>(t), wire), reinterpret_cast<std::byte*>(x.in.data()),
                                       reinterpret_cast<std::byte*>(x.out.data()), &x.op, feedback ? x.residual.data() : nullptr);
      p.expect(s.ok(), s.message());
    }
    for (Tensor& x : tensors) {
      p.expect(p.engine.wait(*x.op, Deadline::after(20)), "a step does not end");
      p.expect(x.op->status().ok(), x.op->status().message());
      results.insert(results.end(), x.out.begin(), x.out.end());
    }
  }
  return results;
}

std::vector<std::vector<float>> train_everywhere(int size, const Given& given, WireFormat wire, bool feedback,
                                                 uint64_t* scheduled = nullptr) {
  EngineWorld world(size, given);
  std::vector<std::vector<float>> results(size);
  CHECK(run(world, [&](Program& p) { results[p.rank] = train(p, wire, 8, feedback); }) == "");
  if (scheduled) *scheduled = world.stats().scheduled;
  return results;
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("wire formats: the same bits on all ranks, in every run, fused or not, with and without a schedule") {
  for (Layout layout : kLayouts) {
    for (int size : {2, 3, 4}) {
      for (WireFormat wire : {WireFormat::fp16, WireFormat::bf16, WireFormat::int8}) {
        CAPTURE(name_of(layout));
        CAPTURE(size);
        Settings plain = crowded(), unfused = crowded();
        unfused.fusion_threshold = 0;
        unfused.cache_capacity = 0;
        uint64_t scheduled = 0;
        const auto first = train_everywhere(size, {layout, plain}, wire, wire == WireFormat::int8, &scheduled);
        const auto second = train_everywhere(size, {layout, unfused}, wire, wire == WireFormat::int8);
        CHECK(scheduled > 0);
        for (int r = 0; r < size; ++r) {
          CHECK(equal_bits(first[r], first[0]));
          CHECK(equal_bits(second[r], first[0]));
        }
      }
    }
  }
}
