// Ranks as threads, each with its own device, over the simulated driver and NCCL.
#pragma once
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda_abi.h"
#include "nccl/collectives.h"
#include "nccl/communicator.h"
#include "simcuda.h"

namespace hvd::testing {

inline const std::string kSimulated = HVD_SIMULATED_DIR;
inline const std::string kSimulatedNccl = kSimulated + "/libnccl.so.2";

// A function that a library exports besides NCCL's.
template <class F>
F* exported(const std::string& library, const char* name) {
  return reinterpret_cast<F*>(::dlsym(::dlopen(library.c_str(), RTLD_NOW), name));
}

inline const nccl::Library& simulated() {
  static const nccl::Library* const library = [] {
    const nccl::Found found = nccl::find({.chosen = kSimulatedNccl, .candidates = {}});
    if (!found.library) MESSAGE(found.why_not);
    return found.library;
  }();
  REQUIRE(library);
  return *library;
}

// A knob of the simulated NCCL for the duration of a scope (tests/simulated/nccl/simnccl.h).
class Knob {
 public:
  Knob(const char* name, const char* value) : name_(name) { REQUIRE(set(name, value) == 0); }
  ~Knob() { set(name_, nullptr); }
  Knob(const Knob&) = delete;

 private:
  static int set(const char* name, const char* value) {
    static auto* const f = exported<int(const char*, const char*)>(kSimulatedNccl, "simnccl_set");
    return f(name, value);
  }
  const char* name_;
};

// The primary context of a device, current on this thread. Never destroyed, because hanging threads may use
// it.
class Device {
 public:
  explicit Device(int ordinal) : context_(new_context()) {
    simcuda_set("devices", 4);
    simcuda_set("collect", 1);
    REQUIRE(cuInit(0) == 0);
    REQUIRE(cuDevicePrimaryCtxRetain(context_, ordinal) == 0);
    cuCtxPushCurrent_v2(*context_);
    REQUIRE(cuStreamCreateWithPriority(&stream, 1, 0) == 0);
  }
  ~Device() {
    CUcontext popped = nullptr;
    cuCtxPopCurrent_v2(&popped);
  }
  Device(const Device&) = delete;

  nccl::Surroundings surroundings() const {
    const auto push = [](void* self) { cuCtxPushCurrent_v2(*static_cast<CUcontext*>(self)); };
    const auto pop = [](void*) {
      CUcontext popped = nullptr;
      cuCtxPopCurrent_v2(&popped);
    };
    return {push, pop, context_};
  }

  void* allocate(size_t bytes) {
    CUdeviceptr p = 0;
    REQUIRE(cuMemAlloc_v2(&p, bytes + 16) == 0);
    return reinterpret_cast<void*>(p);
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    void* p = allocate(values.size() * sizeof(T));
    if (!values.empty())
      std::memcpy(simcuda_at(reinterpret_cast<uint64_t>(p), values.size() * sizeof(T)), values.data(), values.size() * sizeof(T));
    return static_cast<T*>(p);
  }
  template <class T>
  std::vector<T> download(const T* p, size_t count) {
    std::vector<T> values(count);
    if (count) std::memcpy(values.data(), simcuda_at(reinterpret_cast<uint64_t>(p), count * sizeof(T)), count * sizeof(T));
    return values;
  }

  // Returns true if all work of the stream is done within so many seconds.
  bool finish(double seconds = 60) {
    CUevent event = nullptr;
    REQUIRE(cuEventCreate(&event, 2) == 0);
    REQUIRE(cuEventRecord(event, stream) == 0);
    const Deadline deadline = Deadline::after(seconds);
    while (cuEventQuery(event) != 0) {
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    cuEventDestroy_v2(event);
    return true;
  }

  CUstream stream = nullptr;

 private:
  static CUcontext* new_context() {
    static std::mutex mutex;
    static auto* const all = new std::deque<CUcontext>;
    std::lock_guard lock(mutex);
    return &all->emplace_back();
  }
  CUcontext* const context_;
};

inline bool wait_until(const std::function<bool()>& done, double seconds = 60) {
  const Deadline deadline = Deadline::after(seconds);
  while (!done()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// The state of one rank of a test.
struct Rank {
  int rank, size;
  Device device;
  std::shared_ptr<nccl::Communicator> comm;

  Rank(int rank, int size) : rank(rank), size(size), device(rank) {}
  std::shared_ptr<nccl::Communicator> make(const nccl::UniqueId& id, bool warm = false) {
    nccl::WarmUp w;
    if (warm) w = {device.stream, device.allocate(4 * nccl::warm_up_bytes(size)), 4 * nccl::warm_up_bytes(size)};
    return nccl::Communicator::make(simulated(), device.surroundings(), id, size, rank, w);
  }
  static bool created(const std::shared_ptr<nccl::Communicator>& c) {
    return wait_until([&] { return c->state() != nccl::Communicator::State::making; }) && c->ready();
  }
  bool destroy() {
    const auto ending = nccl::destroy(std::span(&comm, 1), 60);
    ending->wait();
    return ending->outcome().ok();
  }
};

inline nccl::UniqueId new_id() {
  nccl::UniqueId id;
  REQUIRE(nccl::make_id(simulated(), &id).ok());
  return id;
}

// Runs `body` as each rank, without a communicator. Assertions in threads count.
inline void as_ranks(int size, const std::function<void(Rank&)>& body) {
  simulated();
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(r, size);
      body(rank);
    });
  }
  for (std::thread& t : threads) t.join();
  const std::string complaints = simcuda_violations();
  CHECK(complaints == "");
}

// The same with a communicator of all ranks, destroyed at the end.
inline void with_communicator(int size, const std::function<void(Rank&)>& body, bool warm = true) {
  simulated();
  const nccl::UniqueId id = new_id();
  as_ranks(size, [&](Rank& r) {
    r.comm = r.make(id, warm);
    REQUIRE(Rank::created(r.comm));
    body(r);
    CHECK(r.device.finish());
    CHECK(r.destroy());
  });
}

}  // namespace hvd::testing
