// Ranges for NVIDIA's profilers, with a library that records them.
#include "trace/nvtx.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include "engine/harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

const std::string kLibrary = HVD_SIMULATED_DIR "/libnvtx3interop.so.1";

std::string marked() {
  return reinterpret_cast<const char* (*)()>(::dlsym(::dlopen(kLibrary.c_str(), RTLD_NOW | RTLD_LOCAL), "simnvtx_marked"))();
}

}  // namespace

TEST_CASE("what an engine carries out is a range named like its operations") {
  EngineWorld world(2);
  std::shared_ptr<NvtxRanges> ranges;
  REQUIRE(NvtxRanges::open(kLibrary, &ranges).ok());
  CHECK(marked() == "domain horovod\n");
  world.engine(1).observers().add(ranges);
  CHECK(run(world, [](Program& p) {
    p.barrier();
    p.equal(p.sum("first", 1), 2, "first");
    Request q = Program::request(Kind::allreduce, "one", {1});
    q.group = "both";
    q.group_size = 2;
    TaskPtr one = p.submit(q, Program::bytes_of(std::vector<int32_t>{1}));
    q.name = "other";
    TaskPtr other = p.submit(q, Program::bytes_of(std::vector<int32_t>{1}));
    p.wait(*one);
    p.wait(*other);
  }) == "");
  world.engine(1).shutdown("");
  const std::string all = marked();
  CAPTURE(all);
  CHECK(all.find("horovod push allreduce first\nhorovod pop\n") != std::string::npos);
  CHECK(all.find("horovod push allreduce one and 1 more\nhorovod pop\n") != std::string::npos);
}

TEST_CASE("a library that cannot be used is an error that names it") {
  std::shared_ptr<NvtxRanges> ranges;
  CHECK(NvtxRanges::open("/nowhere/libnvtx3interop.so.1", &ranges).message().find("/nowhere/libnvtx3interop.so.1") != std::string::npos);
  CHECK(NvtxRanges::open(HVD_SIMULATED_DIR "/libcuda.so.1", &ranges).message().find("lacks functions of NVTX") != std::string::npos);
  CHECK(!ranges);
}
