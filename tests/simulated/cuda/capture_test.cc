#include "harness.h"

namespace {

int begin(CUstream stream, int mode = kCaptureGlobal) { return cuStreamBeginCapture_v2(stream, mode); }

int end(CUstream stream) {
  CUgraph graph = nullptr;
  const int error = cuStreamEndCapture(stream, &graph);
  CHECK((graph != nullptr) == (error == 0));
  return error;
}

int status(CUstream stream) {
  int is = -1;
  const int error = cuStreamIsCapturing(stream, &is);
  return error ? error : is;
}

// A call that captures in global mode forbid, in a thread that has exchanged its mode.
int unsafe_elsewhere(Gpu& gpu, int mode) {
  int error = -1;
  std::thread([&] {
    cuCtxPushCurrent_v2(gpu.context);
    CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0);
    CHECK(mode == kCaptureGlobal);
    CUdeviceptr memory = 0;
    error = cuMemAlloc_v2(&memory, 8);
    if (!error) CHECK(cuMemFree_v2(memory) == 0);
  }).join();
  return error;
}

}  // namespace

TEST_CASE("capture: nothing runs, and the end gives a graph") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  CUdeviceptr memory = gpu.memory(8);
  CHECK(status(stream) == 0);
  CHECK(begin(stream) == 0);
  CHECK(status(stream) == 1);
  CHECK(cuMemsetD8Async(memory, 1, 8, stream) == 0);
  CHECK(end(stream) == 0);
  CHECK(status(stream) == 0);
  gpu.finish(stream);
  CHECK(*static_cast<unsigned char*>(simcuda_at(memory, 1)) == 0xCB);
  CHECK(begin(nullptr) == kCaptureUnsupported);
  cuMemFree_v2(memory);
}

TEST_CASE("capture: calls that are not allowed spoil it, from any thread in global mode") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  for (int mode : {kCaptureThreadLocal, kCaptureRelaxed}) {
    CHECK(begin(stream) == 0);
    CHECK(unsafe_elsewhere(gpu, mode) == 0);
    CHECK(end(stream) == 0);
  }
  CHECK(begin(stream) == 0);
  CHECK(unsafe_elsewhere(gpu, kCaptureGlobal) == kCaptureUnsupported);
  CHECK(status(stream) == 2);
  CHECK(end(stream) == kCaptureInvalidated);
  CHECK(begin(stream, kCaptureThreadLocal) == 0);
  CHECK(unsafe_elsewhere(gpu, kCaptureGlobal) == 0);
  CUdeviceptr memory = 0;
  CHECK(cuMemAlloc_v2(&memory, 8) == kCaptureUnsupported);  // of the thread that captures itself
  CHECK(end(stream) == kCaptureInvalidated);
  CHECK(begin(stream) == 0);
  int mode = kCaptureRelaxed;
  CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0);
  CHECK(cuMemAlloc_v2(&memory, 8) == 0);
  CHECK(cuMemFree_v2(memory) == 0);
  CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0);
  CHECK(mode == kCaptureRelaxed);
  CHECK(end(stream) == 0);
}

TEST_CASE("capture: events that poll spoil a global one, and captured events cannot be asked") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  CUevent polled = gpu.event(), inside = gpu.event();
  CHECK(begin(stream) == 0);
  CHECK(cuEventQuery(polled) == kCaptureUnsupported);
  CHECK(cuEventRecord(inside, stream) == kCaptureInvalidated);
  CHECK(end(stream) == kCaptureInvalidated);
  CHECK(begin(stream, kCaptureRelaxed) == 0);
  CHECK(cuEventRecord(inside, stream) == 0);
  CHECK(cuEventQuery(polled) == 0);
  CHECK(cuEventQuery(inside) == kCapturedEvent);
  CHECK(status(stream) == 2);
  CHECK(end(stream) == kCaptureInvalidated);
  CHECK(begin(stream) == 0);
  CHECK(cuStreamQuery(stream) == kCaptureUnsupported);
  CHECK(end(stream) == kCaptureInvalidated);
}

TEST_CASE("capture: other streams join by events and must come back") {
  Gpu gpu;
  CUstream stream = gpu.stream(), side = gpu.stream(), other = gpu.stream();
  CUevent fork = gpu.event(), join = gpu.event(), outside = gpu.event();
  CUdeviceptr memory = gpu.memory(8);
  CHECK(begin(stream) == 0);
  CHECK(cuEventRecord(fork, stream) == 0);
  CHECK(cuStreamWaitEvent(side, fork, 0) == 0);
  CHECK(status(side) == 1);
  CHECK(cuMemsetD8Async(memory, 1, 8, side) == 0);
  CHECK(cuEventRecord(join, side) == 0);
  CHECK(cuStreamWaitEvent(stream, join, 0) == 0);
  CHECK(end(stream) == 0);
  CHECK(status(side) == 0);

  CHECK(begin(stream) == 0);
  CHECK(cuEventRecord(fork, stream) == 0);
  CHECK(cuStreamWaitEvent(side, fork, 0) == 0);
  CHECK(end(side) == kCaptureUnmatched);
  CHECK(end(stream) == kCaptureInvalidated);

  CHECK(begin(stream) == 0);
  CHECK(cuEventRecord(fork, stream) == 0);
  CHECK(cuStreamWaitEvent(side, fork, 0) == 0);
  CHECK(end(stream) == kCaptureUnjoined);

  CHECK(cuEventRecord(outside, other) == 0);
  CHECK(begin(stream) == 0);
  CHECK(cuStreamWaitEvent(stream, outside, 0) == kCaptureIsolation);
  CHECK(end(stream) == kCaptureInvalidated);

  CHECK(begin(stream) == 0);
  CHECK(begin(other) == 0);
  CHECK(cuEventRecord(fork, stream) == 0);
  CHECK(cuStreamWaitEvent(other, fork, 0) == kCaptureMerge);
  CHECK(end(stream) == kCaptureInvalidated);
  CHECK(end(other) == kCaptureInvalidated);
  cuMemFree_v2(memory);
}

TEST_CASE("capture: the legacy stream, and another thread") {
  Gpu gpu;
  CUstream blocking = gpu.stream(0), free = gpu.stream();
  CUdeviceptr memory = gpu.memory(8);
  CHECK(begin(free) == 0);
  CHECK(cuMemsetD8Async(memory, 1, 8, nullptr) == 0);
  CHECK(end(free) == 0);
  gpu.finish(nullptr);
  CHECK(begin(blocking) == 0);
  CHECK(status(nullptr) == kCaptureImplicit);
  CHECK(status(blocking) == 1);
  CHECK(cuMemsetD8Async(memory, 1, 8, nullptr) == kCaptureImplicit);
  CHECK(status(blocking) == 2);
  CHECK(end(blocking) == kCaptureInvalidated);
  CHECK(begin(free) == 0);
  std::thread([&] {
    cuCtxPushCurrent_v2(gpu.context);
    CHECK(end(free) == kCaptureWrongThread);
  }).join();
  CHECK(end(free) == kCaptureInvalidated);
  cuMemFree_v2(memory);
}
