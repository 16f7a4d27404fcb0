// Operations on tensors of AMD's GPUs, over a simulated HIP that a framework has loaded before: by way of the host, and by RCCL.
#include <doctest/doctest.h>

#include "contains.h"
#include "engine/device/nccl.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

Given on_hip(Given given) {
  static void* const hip = ::dlopen(HVD_SIMULATED_DIR "/libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
  require(hip != nullptr, "the simulated HIP cannot be loaded");
  given.settings.cuda_library = "/nowhere/libcuda.so.1";
  return given;
}

void try_operations(Program& p, int gpu) {
  GpuProgram g(p, gpu, DeviceKind::hip);
  for (size_t n : {size_t{1}, size_t{1000}, size_t{(9 << 20) / 4 + 1}}) {
    OnGpu t = g.submit(of_floats(Kind::allreduce, "r" + std::to_string(n), n), Program::bytes_of(ramp(n, p.rank)), n * 4);
    p.expect(g.values<float>(t) == summed(n, p.size), "allreduce of " + std::to_string(n));
  }
  Request average = of_floats(Kind::allreduce, "mean", 100, ReduceOp::average);
  OnGpu mean = g.submit(average, Program::bytes_of(std::vector<float>(100, static_cast<float>(2 * p.rank))));
  p.expect(g.values<float>(mean) == std::vector<float>(100, static_cast<float>(p.size - 1)), "average");

  Request from_last = of_floats(Kind::broadcast, "b", 6);
  from_last.root = p.size - 1;
  OnGpu b = g.submit(from_last, Program::bytes_of(ramp(6, p.rank)));
  p.expect(g.values<float>(b) == ramp(6, p.size - 1), "broadcast");

  const auto rows = static_cast<size_t>(p.rank);  // rank 0 has none
  Request q = Program::request(Kind::allgather, "g", {p.rank, 2}, DType::float32);
  OnGpu gathered = g.submit(q, Program::bytes_of(std::vector<float>(rows * 2, static_cast<float>(p.rank))));
  std::vector<float> all;
  for (int r = 0; r < p.size; ++r) all.insert(all.end(), static_cast<size_t>(r) * 2, static_cast<float>(r));
  p.expect(g.values<float>(gathered) == all, "allgather");
}

}  // namespace

TEST_CASE("tensors of AMD's GPUs travel by way of the host; a mistake about the kind of GPU is told") {
  check_ranks(3, on_hip(on_gpus(Layout::one_node)), [](Program& p) {
    try_operations(p, p.rank);
    std::byte value{};
    OperationPtr op;
    const Place cuda{DeviceKind::cuda, p.rank, nullptr};
    const Status s = p.engine.submit(Program::request(Kind::allreduce, "x", {1}, DType::uint8), &value, &value, &op, nullptr, &cuda);
    p.expect(contains(s.message(), "the tensor is on CUDA GPU ") && contains(s.message(), "this rank works on ROCm GPU "), s.message());
  });
}

TEST_CASE("kernels of NVIDIA's are not asked of AMD's GPUs, and the log says why") {
  Log log;
  Given given = on_hip(on_gpus(Layout::one_node));
  given.ipc.wanted = true;
  given.log = log.sink();
  EngineWorld world(2, given);
  CHECK(run(world, [](Program& p) { try_operations(p, 0); }) == "");
  CHECK(log.times(
            "not by CUDA IPC: rank 0: ROCm GPU 0 (Simulated GPU 0): the engine's kernels are PTX, NVIDIA's, which an AMD GPU cannot run") ==
        2);
}

TEST_CASE("RCCL carries them out without the engine's kernels") {
  EngineWorld world(2, on_hip(with_nccl(Layout::one_node)));
  const int before = nccl_kernels();
  CHECK(run(world, [before](Program& p) {
    GpuProgram g(p, p.rank, DeviceKind::hip);
    for (int i = 0; i < 2000; ++i) {  // the communicator takes a moment
      OnGpu t = g.submit(of_floats(Kind::allreduce, "warm", 8), Program::bytes_of(ramp(8, p.rank)));
      p.expect(g.values<float>(t) == summed(8, p.size), "warm");
      if (p.sum("seen", nccl_kernels() > before) == p.size) break;
    }
    try_operations(p, p.rank);
  }) == "");
  CHECK(nccl_kernels() > before + 4);
}
