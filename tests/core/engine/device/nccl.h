// Worlds of ranks that each have a simulated GPU and the simulated NCCL.
#pragma once
#include <dlfcn.h>

#include "engine/device/gpu.h"

namespace hvd::testing {

// A function that the simulated NCCL exports besides NCCL's.
template <class Function>
Function of_nccl(const char* name) {
  return reinterpret_cast<Function>(::dlsym(::dlopen(HVD_SIMULATED_DIR "/libnccl.so.2", RTLD_NOW | RTLD_LOCAL), name));
}
inline int nccl_kernels() { return of_nccl<int (*)()>("simnccl_kernels")(); }
inline uint64_t nccl_calls(const char* name) { return of_nccl<uint64_t (*)(const char*)>("simnccl_calls")(name); }
inline int living() { return of_nccl<int (*)()>("simnccl_living")(); }

// A knob of the simulated NCCL for the duration of a scope (tests/simulated/nccl/simnccl.h). turn(): counts
// again from here.
class NcclKnob {
 public:
  NcclKnob(const char* name, const char* value) : name_(name) { turn(value); }
  ~NcclKnob() { turn(nullptr); }
  NcclKnob(const NcclKnob&) = delete;
  void turn(const char* value) { of_nccl<int (*)(const char*, const char*)>("simnccl_set")(name_, value); }

 private:
  const char* name_;
};

inline Setup with_nccl(Layout layout) {
  Setup setup = on_gpus(layout);
  setup.nccl = NcclOptions{};
  setup.nccl.library = HVD_SIMULATED_DIR "/libnccl.so.2";
  return setup;
}

// NCCL inside hosts, the engine's links between them.
inline Setup by_hosts(std::vector<int> nodes = {0, 0, 1, 1}) {
  Setup setup = with_nccl(Layout::pairs);
  setup.nodes = std::move(nodes);
  setup.nccl.by_hosts = true;
  return setup;
}

// Runs operations until one uses NCCL: its communicator takes a moment to form, during which operations go
// through the host.
inline void until_by_nccl(Program& p, GpuProgram& g) {
  const int before = nccl_kernels();
  for (int i = 0; i < 2000; ++i) {
    OnGpu t = g.submit(of_floats(Kind::allreduce, "warm", 8), Program::bytes_of(ramp(8, p.rank)));
    p.expect(g.values<float>(t) == summed(8, p.size), "warm " + std::to_string(i));
    // All ranks check together, so that they agree whether another operation is needed.
    const int seen = p.sum("seen", nccl_kernels() > before + 5 * p.size);
    if (seen == p.size) return;
  }
  p.expect(false, "nothing goes by NCCL");
}

}  // namespace hvd::testing
