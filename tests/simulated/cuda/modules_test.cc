#include "harness.h"
#include "test_kernels.h"

namespace {

std::string text(const char* version, const char* target, size_t bytes = sizeof(FillParameters)) {
  return std::string("//\n.version ") + version + "\n.target " + target + "\n.address_size 64\n.visible .entry fill(\n" +
         ".param .align 8 .b8 fill_param_0[" + std::to_string(bytes) + "]\n)\n{ ret; }\n";
}

int load(CUmodule* module, const std::string& image, std::string* log = nullptr) {
  char buffer[200] = "";
  int options[] = {5, 6};
  void* values[] = {buffer, reinterpret_cast<void*>(sizeof buffer)};
  const int error = cuModuleLoadDataEx(module, image.c_str(), 2, options, values);
  if (log) *log = buffer;
  return error;
}

}  // namespace

TEST_CASE("modules: which PTX the driver takes, and what its log says") {
  Gpu gpu;
  CUmodule module = nullptr;
  std::string log;
  CHECK(load(&module, text("8.1", "sm_70"), &log) == 0);
  CHECK(log == "");
  CHECK(load(&module, text("9.1", "sm_70"), &log) == kUnsupportedPtxVersion);
  CHECK(log.find("Unsupported .version 9.1; current version is 9.0") != std::string::npos);
  CHECK(load(&module, text("8.1", "sm_100"), &log) == kNoBinaryForGpu);
  CHECK(log.find("sm_100") != std::string::npos);
  CHECK(load(&module,
             "\x7f"
             "ELF",
             &log) == kInvalidPtx);
  CHECK(load(&module, ".target sm_70\n", &log) == kInvalidPtx);
  {
    Set old("version", 12000, 13000);
    CHECK(load(&module, text("8.1", "sm_70")) == kUnsupportedPtxVersion);
    CHECK(load(&module, text("8.0", "sm_70")) == 0);
  }
  Set none("jit", 0, 1);
  CHECK(load(&module, text("8.1", "sm_70")) == kJitCompilerNotFound);
}

TEST_CASE("modules: a kernel runs on its stream with the parameters of the call") {
  setenv("SIMCUDA_KERNELS", SIMCUDA_TEST_KERNELS, 1);
  Gpu gpu;
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  REQUIRE(load(&module, text("8.1", "sm_70")) == 0);
  CHECK(cuModuleGetFunction(&fill, module, "nothing") == kNotFound);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill") == 0);
  CUstream stream = gpu.stream();
  CUdeviceptr memory = gpu.memory(256);
  FillParameters parameters{memory, 256, 42};
  void* pointers[] = {&parameters};
  const auto launch = [&](unsigned threads, CUstream where) {
    return cuLaunchKernel(fill, 4, 1, 1, threads, 1, 1, 0, where, pointers, nullptr);
  };
  {
    Gate gate(stream);
    CHECK(launch(64, stream) == 0);
    parameters.value = 43;
    gate.open = true;
    gpu.finish(stream);
  }
  const auto* bytes = static_cast<unsigned char*>(simcuda_at(memory, 256));
  CHECK(bytes[0] == 42);
  CHECK(bytes[255] == 42);
  CHECK(launch(1025, stream) == kInvalidValue);
  CHECK(launch(0, stream) == kInvalidValue);
  {
    Gpu other(1);
    CHECK(launch(64, other.stream()) == kInvalidHandle);
    parameters.memory = other.memory(256);
    cuCtxPushCurrent_v2(gpu.context);
    CHECK(launch(64, stream) == 0);
    gpu.finish(stream);
    cuCtxPopCurrent_v2(nullptr);
    cuMemFree_v2(parameters.memory);
    CHECK(complained("without access to that peer"));
  }
  parameters.memory = memory;
  {
    Set watch("watch", 1);
    CHECK(launch(64, stream) == 0);  // loaded long ago
    CHECK(std::string(simcuda_violations()) == "");
    CUfunction lazy = nullptr;
    simcuda_set("watch", 0);
    REQUIRE(cuModuleGetFunction(&lazy, module, "fill") == 0);
    simcuda_set("watch", 1);
    CHECK(cuLaunchKernel(lazy, 1, 1, 1, 1, 1, 1, 0, stream, pointers, nullptr) == 0);
    CHECK(complained("cuLaunchKernel may wait"));
  }
  gpu.finish(stream);
  cuMemFree_v2(memory);
  REQUIRE(load(&module, text("8.1", "sm_70", 8)) == 0);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill") == 0);
  CHECK(complained("fill takes 8 bytes in PTX and 24 on the host"));
}
