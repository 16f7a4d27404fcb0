// Surprising behaviour of NCCL that the simulation must reproduce, because tests would miss real errors
// otherwise.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "arithmetic.h"
#include "base/half.h"
#include "cuda_abi.h"
#include "nccl_abi.h"
#include "simcuda.h"
#include "simnccl.h"

namespace {

class Knob {
 public:
  Knob(const char* name, const char* value) : name_(name) { REQUIRE(simnccl_set(name, value) == 0); }
  ~Knob() { simnccl_set(name_, nullptr); }
  Knob(const Knob&) = delete;

 private:
  const char* name_;
};

void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// A rank that is a thread, with device, stream, some memory and later a communicator.
struct Rank {
  int rank, size;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  float* data = nullptr;
  ncclComm_t comm = nullptr;

  Rank(int rank, int size, int device) : rank(rank), size(size) {
    simcuda_set("devices", 4);
    simcuda_set("collect", 1);
    REQUIRE(cuInit(0) == 0);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == 0);
    REQUIRE(cuCtxPushCurrent_v2(context) == 0);
    REQUIRE(cuStreamCreateWithPriority(&stream, 1, 0) == 0);
    CUdeviceptr p = 0;
    REQUIRE(cuMemAlloc_v2(&p, 4096) == 0);
    data = reinterpret_cast<float*>(p);
    host()[0] = static_cast<float>(rank + 1);
  }
  float* host() { return static_cast<float*>(simcuda_at(reinterpret_cast<uint64_t>(data), 4096)); }
  ncclResult_t sum(CUstream on = nullptr) { return ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, comm, on ? on : stream); }
  bool finish(int milliseconds = 30000) {
    CUevent e = nullptr;
    REQUIRE(cuEventCreate(&e, 2) == 0);
    REQUIRE(cuEventRecord(e, stream) == 0);
    for (int i = 0; i < milliseconds && cuEventQuery(e) != 0; ++i) pause(1);
    return cuEventQuery(e) == 0;
  }
};

void as_ranks(int size, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(r, size, r);
      REQUIRE(ncclCommInitRank(&rank.comm, size, id, r) == ncclSuccess);
      body(rank);
    });
  }
  for (std::thread& t : threads) t.join();
}

// True if the sentence is among the violations; clears all violations.
bool complained(const char* sentence) { return std::string(simcuda_violations()).find(sentence) != std::string::npos; }

template <class T>
std::vector<T> reduce(simnccl::Reduce how, const std::vector<std::vector<T>>& inputs) {
  std::vector<const void*> in;
  for (const auto& v : inputs) in.push_back(v.data());
  std::vector<T> out(inputs[0].size());
  how.size = static_cast<int>(inputs.size());
  simnccl::reduce(how, out.data(), in.data(), out.size());
  return out;
}

}  // namespace

TEST_CASE("the first call of a kind blocks the host until the others call too; one rank blocks nobody") {
  std::atomic<bool> second{false};
  as_ranks(2, [&](Rank& r) {
    if (r.rank == 1) {
      pause(50);
      second = true;
    }
    REQUIRE(r.sum() == ncclSuccess);
    CHECK(second);
    CHECK(r.finish());
    CHECK(r.host()[0] == 3);
    CHECK(ncclCommDestroy(r.comm) == ncclSuccess);
  });
  as_ranks(1, [](Rank& r) {
    const int before = simnccl_kernels();
    REQUIRE(ncclGroupStart() == ncclSuccess);
    REQUIRE(r.sum() == ncclSuccess);
    CHECK(simnccl_kernels() == before + 1);  // at the call, in spite of the group
    REQUIRE(ncclGroupEnd() == ncclSuccess);
    CHECK(r.finish());
    CHECK(ncclCommDestroy(r.comm) == ncclSuccess);
  });
  CHECK(std::string(simcuda_violations()) == "");
}

TEST_CASE("a message waits for its receiver while its sender sends to others") {
  std::atomic<int> may_receive{0};
  as_ranks(2, [&](Rank& r) {
    if (r.rank == 0) {
      simcuda_enqueue(r.stream, [](void*) {}, &may_receive, [](void* may) { return static_cast<std::atomic<int>*>(may)->load(); });
      REQUIRE(ncclRecv(r.data, 1, ncclFloat32, 1, r.comm, r.stream) == ncclSuccess);
    } else {
      CUstream other = nullptr;
      REQUIRE(cuStreamCreateWithPriority(&other, 1, 0) == 0);
      REQUIRE(ncclSend(r.data, 1, ncclFloat32, 0, r.comm, other) == ncclSuccess);
      for (int i = 0; i < 20; ++i) {  // to itself
        REQUIRE(ncclGroupStart() == ncclSuccess);
        REQUIRE(ncclSend(r.data, 1, ncclFloat32, 1, r.comm, r.stream) == ncclSuccess);
        REQUIRE(ncclRecv(r.data + 1, 1, ncclFloat32, 1, r.comm, r.stream) == ncclSuccess);
        REQUIRE(ncclGroupEnd() == ncclSuccess);
      }
      CHECK(r.finish());
      may_receive = 1;
    }
    CHECK(r.finish());
    CHECK(r.host()[0] == 2);
    CHECK(ncclCommDestroy(r.comm) == ncclSuccess);
  });
  CHECK(std::string(simcuda_violations()) == "");
}

TEST_CASE("mistakes are reported: use after the end, operations left over, memory that overlaps, no context, wrong device") {
  as_ranks(1, [](Rank& r) {
    ncclAllReduce(r.data, r.data + 1, 2, ncclFloat32, ncclSum, r.comm, r.stream);
    CHECK(complained("memory in and out that overlaps"));
    int op = 0;
    float three = 3;
    REQUIRE(ncclRedOpCreatePreMulSum(&op, &three, ncclFloat32, ncclScalarHostImmediate, r.comm) == ncclSuccess);
    CHECK(ncclAllReduce(r.data, r.data, 1, ncclFloat64, op, r.comm, r.stream) == ncclInvalidArgument);
    {
      Rank other(0, 1, 1);
      ncclAllReduce(r.data, r.data, 1, ncclFloat32, ncclSum, r.comm, r.stream);
      CHECK(complained("launched with device 1 current"));
      CUcontext popped = nullptr;
      cuCtxPopCurrent_v2(&popped);
    }
    CHECK(r.finish());
    CHECK(ncclCommDestroy(r.comm) == ncclSuccess);
    CHECK(complained("a premultiplied operation that was not released"));
    CHECK(r.sum() == ncclInvalidArgument);
    CHECK(complained("ncclAllReduce on a communicator after ncclCommDestroy"));
  });
  std::thread([] {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    ncclComm_t comm = nullptr;
    CHECK(ncclCommInitRank(&comm, 1, id, 0) == ncclUnhandledCudaError);
    CHECK(complained("on a thread without a current context"));
  }).join();
}
