// The engine's own kernels through the simulated driver: the PTX that is committed names them, and the same source compiled for the host
// runs.
#include "harness.h"
#include "kernels/launch.h"

TEST_CASE("modules: the engine's kernels") {
  setenv("SIMCUDA_KERNELS", HVD_KERNELS_HOST, 1);
  Gpu gpu;
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadDataEx(&module, hvd::kernels::kPtx, 0, nullptr, nullptr) == 0);
  CUstream stream = gpu.stream();
  std::vector<CUfunction> functions;
  std::vector<char> zeros(32764);
  void* nothing[] = {zeros.data()};
  for (const auto& kernel : hvd::kernels::all()) {
    REQUIRE(cuModuleGetFunction(&functions.emplace_back(), module, kernel.name) == 0);
    CHECK(cuLaunchKernel(functions.back(), 1, 1, 1, 32, 1, 1, 0, stream, nothing, nullptr) == 0);
  }
  gpu.finish(stream);

  const size_t count = 10000, reduce = hvd::kernels::reduce_of(hvd::DType::float32);
  float* host = gpu.pinned<float>(count);
  for (size_t i = 0; i < count; ++i) host[i] = static_cast<float>(i);
  CUdeviceptr a = gpu.memory(count * 4), b = gpu.memory(count * 4);
  CHECK(cuMemcpyHtoDAsync_v2(a, host, count * 4, stream) == 0);
  CHECK(cuMemcpyDtoDAsync_v2(b, a, count * 4, stream) == 0);
  hvd::kernels::ReduceParameters parameters{};
  parameters.sources[0] = a;
  parameters.sources[1] = b;
  parameters.destinations[0] = b;
  parameters.end = count;
  parameters.scaling = hvd::kernels::scaling_of(1.0, 4);
  parameters.op = *hvd::kernels::op_of(hvd::ReduceOp::sum);
  parameters.source_count = 2;
  parameters.destination_count = 1;
  void* pointers[] = {&parameters};
  const auto geometry = hvd::kernels::geometry(count, 4, 4);
  CHECK(cuLaunchKernel(functions[reduce], geometry.blocks, 1, 1, geometry.threads, 1, 1, 0, stream, pointers, nullptr) == 0);
  CHECK(cuMemcpyDtoHAsync_v2(host, b, count * 4, stream) == 0);
  gpu.finish(stream);
  for (size_t i = 0; i < count; ++i) REQUIRE(host[i] == static_cast<float>(i) / 2);

  CUstream other = gpu.stream();  // reads the result without a wait for it
  CHECK(cuLaunchKernel(functions[reduce], geometry.blocks, 1, 1, geometry.threads, 1, 1, 0, stream, pointers, nullptr) == 0);
  gpu.pass(stream);
  CHECK(cuMemcpyDtoHAsync_v2(host, b + 400, 400, other) == 0);
  gpu.finish(other);
  CHECK(complained("is not ordered after"));
  cuMemFree_v2(a);
  cuMemFree_v2(b);
  cuMemFreeHost(host);
}
