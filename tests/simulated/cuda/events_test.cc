#include "harness.h"

TEST_CASE("events: one that was never recorded is complete, and a wait for it is no wait") {
  Gpu gpu;
  CUevent event = gpu.event();
  CUstream early = gpu.stream(), stream = gpu.stream();
  CHECK(cuEventQuery(event) == 0);
  CHECK(cuEventSynchronize(event) == 0);
  CHECK(cuStreamWaitEvent(early, event, 0) == 0);
  Gate gate(stream);
  CHECK(cuEventRecord(event, stream) == 0);
  CHECK(cuEventQuery(event) == kNotReady);
  gpu.finish(early);  // its wait came before the record
  gate.open = true;
  CHECK(cuEventSynchronize(event) == 0);
  CHECK(cuEventQuery(event) == 0);
  cuEventDestroy_v2(event);
}

TEST_CASE("events: a wait belongs to the record of its moment, and a new record does not move it") {
  Gpu gpu;
  CUevent event = gpu.event();
  CUstream first = gpu.stream(), second = gpu.stream(), waits_first = gpu.stream(), waits_second = gpu.stream();
  Gate one(first), two(second);
  CHECK(cuEventRecord(event, first) == 0);
  CHECK(cuStreamWaitEvent(waits_first, event, 0) == 0);
  CHECK(cuEventRecord(event, second) == 0);
  CHECK(cuStreamWaitEvent(waits_second, event, 0) == 0);
  two.open = true;
  gpu.finish(waits_second);  // the first record is still open
  CHECK(cuEventQuery(event) == 0);
  CHECK(cuEventRecord(gpu.event(), waits_first) == 0);
  CHECK(cuStreamQuery(waits_first) == kNotReady);
  one.open = true;
  gpu.finish(waits_first);
}

TEST_CASE("events: flags, and what is left of one that was destroyed") {
  Gpu gpu;
  CUevent event = nullptr;
  CHECK(cuEventCreate(&event, kEventInterprocess) == kInvalidValue);
  CHECK(cuEventCreate(&event, kEventInterprocess | kEventDisableTiming) == 0);
  CHECK(cuEventDestroy_v2(event) == 0);
  CHECK(cuEventQuery(event) == kInvalidHandle);
  CHECK(complained("use of an event that was destroyed"));
  CHECK(cuEventQuery(&gpu) == kInvalidHandle);
}

TEST_CASE("values: streams write words and wait for them, and the host may let them go") {
  Gpu gpu;
  CUstream a = gpu.stream(), b = gpu.stream();
  auto* words = gpu.pinned<uint64_t>(2);
  words[0] = words[1] = 0;
  const auto at = reinterpret_cast<CUdeviceptr>(words);
  CHECK(cuStreamWaitValue64_v2(a, at, 5, kWaitGeq) == 0);
  CHECK(cuStreamWriteValue64_v2(a, at + 8, 7, 0) == 0);
  CHECK(cuStreamWaitValue64_v2(b, at + 8, 7, kWaitEq) == 0);
  CHECK(cuStreamQuery(b) == kNotReady);
  __atomic_store_n(&words[0], uint64_t{6}, __ATOMIC_SEQ_CST);
  gpu.finish(b);
  CHECK(__atomic_load_n(&words[1], __ATOMIC_SEQ_CST) == 7);
  CHECK(cuStreamWriteValue64_v2(a, at + 4, 7, 0) == kInvalidValue);
  CUdeviceptr memory = gpu.memory(4);
  CHECK(cuStreamWriteValue32_v2(a, memory, 0xfffffffe, 0) == 0);
  CHECK(cuStreamWaitValue32_v2(a, memory, 0xfffffff0, kWaitGeq) == 0);
  CHECK(cuStreamWaitValue32_v2(a, memory, 2, kWaitAnd) == 0);
  gpu.finish(a);
  cuMemFree_v2(memory);
  cuMemFreeHost(words);
}
