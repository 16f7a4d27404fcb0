// Random jobs (random_jobs.h) of ranks with a GPU each, over the simulated driver: tensors on GPUs and on CPUs, by NCCL and by way of the
// host.
//   HVD_STRESS_ROUNDS: how many (default 8); SIMCUDA_SEED: the seed of the first, and of the simulated driver's delays
#include <doctest/doctest.h>

#include "engine/device/nccl.h"
#include "engine/random_jobs.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Tensors of some names on the rank's GPU, those of the others on the CPU.
class SomeOnGpu final : public TensorMemory {
 public:
  explicit SomeOnGpu(Program& program) : TensorMemory(program), g_(program) {}
  TaskPtr submit(Request q, const std::vector<std::byte>& data) override {
    const std::string name = q.group_size ? q.group : q.name;
    const bool tensor = q.kind != Kind::barrier && q.kind != Kind::join && q.kind != Kind::add_set && q.kind != Kind::remove_set;
    if (!tensor || std::hash<std::string>()(name) % 3 == 0) return TensorMemory::submit(std::move(q), data);
    auto made = std::make_shared<Task>();
    made->name = q.name;
    const size_t out_bytes = q.kind == Kind::allreduce ? 0 : data.size();  // allreduces in place
    OnGpu on_gpu = g_.submit(std::move(q), data, out_bytes);
    made->op = on_gpu.op;
    tensors_[made.get()] = {made, on_gpu};
    return made;
  }
  bool again(Task& task, const std::vector<std::byte>& data) override { return !tensors_.count(&task) && TensorMemory::again(task, data); }
  Status finish(Task& task) override {
    const auto tensor = tensors_.find(&task);
    if (tensor == tensors_.end()) return TensorMemory::finish(task);
    OnGpu& on_gpu = tensor->second.second;
    const Status s = g_.finish(on_gpu);
    if (s.ok()) task.out = g_.result(on_gpu);
    return s;
  }

 private:
  GpuProgram g_;
  std::map<const Task*, std::pair<TaskPtr, OnGpu>> tensors_;
};

}  // namespace

TEST_CASE("random jobs on GPUs, by NCCL and by way of the host") {
  const int before = nccl_kernels();
  const auto first = static_cast<uint64_t>(number("SIMCUDA_SEED", 1)) * 1000,
             rounds = static_cast<uint64_t>(number("HVD_STRESS_ROUNDS", 8));
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 choose(seed);
    const int size = 2 + static_cast<int>(choose() % 3);
    const auto layout = static_cast<Layout>(choose() % 3);
    EngineWorld world(size, choose() % 4 ? with_nccl(layout) : on_gpus(layout));
    const Job job(seed, {.size = size, .steps = 24});
    Run run_of(job, world, seed);
    CHECK(run(world, [&](Program& p) {
      p.patience = 60;
      SomeOnGpu memory(p);
      play_rank(run_of, p, memory);
    }) == "");
  }
  CHECK(nccl_kernels() > before);
}
