#include "processes.h"

namespace {

template <typename Handle>
Handle handle_from(const std::string& answer) {
  Handle handle{};
  REQUIRE(answer.size() == 2 + 128);
  REQUIRE(answer.substr(0, 2) == "0 ");
  for (size_t i = 0; i < 64; ++i) handle.reserved[i] = static_cast<char>(std::stoi(answer.substr(2 + 2 * i, 2), nullptr, 16));
  return handle;
}

}  // namespace

TEST_CASE("ipc: memory of another process, by its base, counted, and back") {
  Gpu gpu;
  Process peer({"peer"}, {});
  const auto handle = handle_from<CUipcMemHandle>(peer.ask("alloc 100000"));  // of the address 100 bytes behind the base
  const auto event_handle = handle_from<CUipcEventHandle>(peer.ask("event"));
  CUdeviceptr memory = 0, again = 0;
  CUevent event = nullptr;
  CHECK(cuIpcOpenMemHandle_v2(&memory, handle, 0) == kInvalidValue);
  REQUIRE(cuIpcOpenMemHandle_v2(&memory, handle, kIpcLazyPeerAccess) == 0);
  REQUIRE(cuIpcOpenMemHandle_v2(&again, handle, kIpcLazyPeerAccess) == 0);
  CHECK(memory == again);
  REQUIRE(cuIpcOpenEventHandle(&event, event_handle) == 0);
  CUstream stream = gpu.stream();
  char* host = gpu.pinned<char>(100000);

  CHECK(peer.ask("gate") == "0");
  CHECK(peer.ask("fill 5") == "0");
  CHECK(peer.ask("record") == "0");
  CHECK(cuEventQuery(event) == kNotReady);
  CHECK(cuStreamWaitEvent(stream, event, 0) == 0);
  CHECK(cuMemcpyDtoHAsync_v2(host, memory, 100000, stream) == 0);
  CHECK(cuStreamQuery(stream) == kNotReady);
  CHECK(peer.ask("open") == "0");
  gpu.finish(stream);
  CHECK(host[0] == 5);
  CHECK(host[99999] == 5);
  CHECK(cuEventQuery(event) == 0);

  {  // an imported event can be recorded here and waited for there
    Gate gate(stream);
    CHECK(cuEventRecord(event, stream) == 0);
    CHECK(peer.ask("query") == "600");
    gate.open = true;
    CHECK(peer.ask("synchronize") == "0");
  }
  CHECK(cuMemFree_v2(memory) == kInvalidValue);
  CHECK(cuIpcCloseMemHandle(memory) == 0);
  simcuda_at(memory, 1);
  CHECK(cuIpcCloseMemHandle(memory) == 0);
  CHECK(std::string(simcuda_violations()) == "");
  simcuda_at(memory, 1);
  CHECK(complained("after it was freed"));
  CHECK(cuEventDestroy_v2(event) == 0);
  CHECK(peer.ask("free") == "0 ");
  cuMemFreeHost(host);
}

TEST_CASE("ipc: use after the exporter's free and destroy is reported on both sides") {
  Gpu gpu;
  Process peer({"peer"}, {});
  const auto handle = handle_from<CUipcMemHandle>(peer.ask("alloc 100000"));
  const auto event_handle = handle_from<CUipcEventHandle>(peer.ask("event"));
  CUdeviceptr memory = 0;
  CUevent event = nullptr;
  REQUIRE(cuIpcOpenMemHandle_v2(&memory, handle, kIpcLazyPeerAccess) == 0);
  REQUIRE(cuIpcOpenEventHandle(&event, event_handle) == 0);
  CHECK(peer.ask("free").find("which another process has open") != std::string::npos);
  simcuda_at(memory, 1);
  CHECK(complained("after its exporter freed it"));
  CHECK(cuIpcCloseMemHandle(memory) == 0);
  CHECK(cuIpcOpenMemHandle_v2(&memory, handle, kIpcLazyPeerAccess) == kInvalidValue);
  CHECK(peer.ask("destroy") == "0");
  CHECK(cuEventQuery(event) == 0);
  CHECK(complained("that its exporter has destroyed"));
}

TEST_CASE("ipc: peers that die leave what is mapped, events that never come, and handles that nobody opens") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  Process peer({"peer"}, {});
  const auto handle = handle_from<CUipcMemHandle>(peer.ask("alloc 100000"));
  const auto other = handle_from<CUipcMemHandle>(peer.ask("alloc 200000"));
  const auto event_handle = handle_from<CUipcEventHandle>(peer.ask("event"));
  CUdeviceptr memory = 0, none = 0;
  CUevent event = nullptr;
  REQUIRE(cuIpcOpenMemHandle_v2(&memory, handle, kIpcLazyPeerAccess) == 0);
  REQUIRE(cuIpcOpenEventHandle(&event, event_handle) == 0);
  CHECK(peer.ask("gate") == "0");
  CHECK(peer.ask("record") == "0");
  peer.kill_now();
  CHECK(cuEventQuery(event) == kNotReady);
  CHECK(cuMemsetD8Async(memory, 1, 100000, stream) == 0);
  gpu.finish(stream);
  CHECK(cuIpcOpenMemHandle_v2(&none, other, kIpcLazyPeerAccess) == kInvalidValue);
  CHECK(cuIpcCloseMemHandle(memory) == 0);
}

TEST_CASE("ipc: not in the process that exported it, and an importer that died is no reason to keep memory") {
  Gpu gpu;
  CUdeviceptr memory = gpu.memory(4096), mine = 0;
  CUipcMemHandle handle;
  REQUIRE(cuIpcGetMemHandle(&handle, memory) == 0);
  CHECK(cuIpcOpenMemHandle_v2(&mine, handle, kIpcLazyPeerAccess) == kInvalidContext);
  std::string text;
  for (char byte : handle.reserved) text += "0123456789abcdef"[byte >> 4 & 15], text += "0123456789abcdef"[byte & 15];
  Process peer({"peer"}, {});
  CHECK(peer.ask("import " + text) == "0");
  CHECK(cuMemsetD8Async(memory, 9, 4096, nullptr) == 0);
  gpu.finish(nullptr);
  CHECK(peer.ask("first") == "9");
  peer.kill_now();
  CHECK(cuMemFree_v2(memory) == 0);
}

TEST_CASE("ipc: forbidden, or memory that cannot be exported") {
  Gpu gpu;
  CUipcMemHandle handle;
  Process peer({"peer"}, {});
  const auto theirs = handle_from<CUipcMemHandle>(peer.ask("alloc 100000"));
  CUdeviceptr memory = gpu.memory(8), opened = 0;
  {
    Set forbidden("no_ipc", 1);
    CHECK(cuIpcGetMemHandle(&handle, memory) == 0);
    CHECK(cuIpcOpenMemHandle_v2(&opened, theirs, kIpcLazyPeerAccess) == kInvalidValue);
  }
  {
    Set forbidden("no_ipc", 2);
    CHECK(cuIpcGetMemHandle(&handle, memory) == kNotSupported);
  }
  CHECK(cuMemFree_v2(memory) == 0);
  Set expandable("not_exportable", 1);
  memory = gpu.memory(8);
  int capable = 1;
  CHECK(cuPointerGetAttribute(&capable, 10, memory) == 0);
  CHECK(capable == 0);
  CHECK(cuIpcGetMemHandle(&handle, memory) == kInvalidValue);
  CHECK(cuMemFree_v2(memory) == 0);
  CUevent event = gpu.event();
  CUipcEventHandle event_handle;
  CHECK(cuIpcGetEventHandle(&event_handle, event) == kInvalidHandle);
}

TEST_CASE("turns: on one GPU a process that spins costs the others whole slices") {
  Gpu gpu;
  Set slices("slice_ms", 20);
  CUstream stream = gpu.stream();
  Process peer({"peer"}, {"SIMCUDA_SLICE_MS=20"});
  CHECK(peer.ask("close") == "0");
  CHECK(peer.ask("spin") == "0");
  while (peer.ask("spinning") != "1") std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    gpu.finish(stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  CHECK(std::chrono::steady_clock::now() - start > std::chrono::milliseconds(40));
  CHECK(peer.ask("open") == "0");
}
