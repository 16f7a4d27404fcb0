// Random jobs (random_jobs.h) with tensors on GPUs and on CPUs, over the simulated driver. Ranks have a GPU each and use NCCL, NCCL inside
// hosts or host memory; or they share one and reduce in each other's memory.
//   HVD_STRESS_ROUNDS: how many (default 16); SIMCUDA_SEED: the seed of the first, and of the simulated driver's delays
#include <doctest/doctest.h>

#include "engine/device/ipc.h"
#include "engine/device/nccl.h"
#include "engine/random_jobs.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Tensors of some names on the rank's GPU, those of the others on the CPU.
class SomeOnGpu final : public TensorMemory {
 public:
  SomeOnGpu(Program& program, int gpu) : TensorMemory(program), g_(program, gpu) {}
  TaskPtr submit(Request q, const std::vector<std::byte>& data) override {
    const std::string name = q.group_size ? q.group : q.name;
    const bool tensor = q.kind != Kind::barrier && q.kind != Kind::join && q.kind != Kind::add_set && q.kind != Kind::remove_set;
    if (!tensor || std::hash<std::string>()(name) % 3 == 0) return TensorMemory::submit(std::move(q), data);
    auto created = std::make_shared<Task>();
    created->name = q.name;
    const size_t out_bytes = q.kind == Kind::allreduce ? 0 : data.size();  // allreduces in place
    OnGpu on_gpu = g_.submit(std::move(q), data, out_bytes);
    created->op = on_gpu.op;
    tensors_[created.get()] = {created, on_gpu};
    return created;
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

TEST_CASE("random jobs on GPUs: everything ends, with the right results, whichever way tensors travel") {
  const int nccl_before = nccl_kernels();
  uint64_t launched_for_ipc = 0;
  const auto first = static_cast<uint64_t>(number("SIMCUDA_SEED", 1)) * 1000,
             rounds = static_cast<uint64_t>(number("HVD_STRESS_ROUNDS", 16));
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 choose(seed);
    const bool share = seed % 4 == 1, hosts = seed % 8 == 3;
    const int size = hosts ? 4 : 2 + static_cast<int>(choose() % 3);
    const auto layout = static_cast<Layout>(choose() % 3);
    const uint64_t launched = launches();
    EngineWorld world(size, share ? shared(true) : hosts ? by_hosts() : seed % 8 == 7 ? on_gpus(layout) : with_nccl(layout));
    const Job job(seed, {.size = size, .steps = 24});
    Run run_of(job, world, seed);
    CHECK(run(world, [&](Program& p) {
      p.patience = 60;
      SomeOnGpu memory(p, share ? 0 : p.rank);
      play_rank(run_of, p, memory);
    }) == "");
    if (share) launched_for_ipc += launches() - launched;
  }
  CHECK(nccl_kernels() > nccl_before);
  CHECK(launched_for_ipc > 0);
}
