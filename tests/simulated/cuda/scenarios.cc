// What needs a process of its own: scenarios NAME. Ends with 0 when all was as it should be, with the number of the line that was not else.
//
// "peer" does what it reads on its standard input, a command a line, and answers each with a line: for tests with two processes.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "cuda_abi.h"
#include "simcuda.h"

namespace {

#define EXPECT(what) \
  if (!(what)) return __LINE__ % 255 + 1

CUcontext start() {
  CUcontext context = nullptr;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxPushCurrent_v2(context)) std::_Exit(99);
  return context;
}

int init(int result) {
  EXPECT(cuInit(0) == result);
  int count = -1;
  EXPECT(cuDeviceGetCount(&count) == (result ? kNotInitialized : kSuccess));
  return 0;
}

int visible() {
  EXPECT(init(0) == 0);
  char bus[16];
  EXPECT(cuDeviceGetPCIBusId(bus, sizeof bus, 0) == 0 && std::string(bus) == "0000:12:00.0");
  EXPECT(cuDeviceGetPCIBusId(bus, sizeof bus, 1) == kInvalidDevice);
  return 0;
}

int after_exit() {
  std::atexit([] {
    CUcontext current = nullptr;
    std::_Exit(cuCtxGetCurrent(&current) == kDeinitialized ? 0 : 1);
  });
  start();
  return 2;
}

int forked() {
  start();
  const pid_t child = fork();
  int count = 0, status = 0;
  if (child == 0) std::_Exit(cuDeviceGetCount(&count) == kNotInitialized ? 0 : 1);
  waitpid(child, &status, 0);
  EXPECT(status == 0);
  EXPECT(cuDeviceGetCount(&count) == 0);
  return 0;
}

// A sticky error ends a wait, and comes back from every later call.
int faulty() {
  start();
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  EXPECT(cuStreamCreateWithPriority(&stream, kStreamNonBlocking, 0) == 0);
  EXPECT(cuEventCreate(&event, kEventDisableTiming) == 0);
  EXPECT(cuMemAlloc_v2(&memory, 8) == 0);
  simcuda_enqueue(stream, [](void*) {}, nullptr, [](void*) { return 0; });
  EXPECT(cuEventRecord(event, stream) == 0);
  std::thread fails([] {
    usleep(5000);
    simcuda_set("fault", kIllegalAddress);
  });
  const int ended = cuEventSynchronize(event);
  fails.join();
  EXPECT(ended == kIllegalAddress);
  EXPECT(cuEventQuery(event) == kIllegalAddress);
  EXPECT(cuMemFree_v2(memory) == kIllegalAddress);
  EXPECT(cuStreamQuery(stream) == kIllegalAddress);
  EXPECT(cuCtxPopCurrent_v2(nullptr) == 0);
  return 0;
}

int tidy(bool leave_something) {
  start();
  CUdeviceptr memory = 0;
  EXPECT(cuMemAlloc_v2(&memory, 8) == 0);
  if (leave_something) return 0;
  EXPECT(cuMemFree_v2(memory) == 0);
  EXPECT(cuDevicePrimaryCtxRelease_v2(0) == 0);
  return 0;
}

int touch_device_memory() {
  start();
  CUdeviceptr memory = 0;
  EXPECT(cuMemAlloc_v2(&memory, 8) == 0);
  *reinterpret_cast<volatile char*>(memory) = 1;
  return 0;
}

int trap() {
  auto old = reinterpret_cast<int (*)(unsigned*, unsigned)>(dlsym(RTLD_DEFAULT, "cuMemAlloc"));
  EXPECT(old != nullptr);
  unsigned address = 0;
  return old(&address, 8);
}

std::string hex(const char* bytes) {
  std::string text;
  char digits[3];
  for (int i = 0; i < 64; ++i) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(bytes[i]));
    text += digits;
  }
  return text;
}

CUipcMemHandle from_hex(const std::string& text) {
  CUipcMemHandle handle{};
  for (size_t i = 0; i < 64 && 2 * i + 1 < text.size(); ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return handle;
}

struct Peer {
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  CUevent event = nullptr;
  std::atomic<bool> open{true}, spinning{false};

  std::string answer(const std::string& command, const std::string& argument) {
    const int number = std::atoi(argument.c_str());
    if (command == "import") return std::to_string(cuIpcOpenMemHandle_v2(&memory, from_hex(argument), kIpcLazyPeerAccess));
    if (command == "first") return std::to_string(*static_cast<unsigned char*>(simcuda_at(memory, 1)));
    if (command == "alloc") {
      cuMemAlloc_v2(&memory, static_cast<size_t>(number));
      CUipcMemHandle handle;
      const int error = cuIpcGetMemHandle(&handle, memory + 100);
      return std::to_string(error) + " " + hex(handle.reserved);
    }
    if (command == "event") {
      cuEventCreate(&event, kEventInterprocess | kEventDisableTiming);
      CUipcEventHandle handle;
      const int error = cuIpcGetEventHandle(&handle, event);
      return std::to_string(error) + " " + hex(handle.reserved);
    }
    if (command == "fill") return std::to_string(cuMemsetD8Async(memory, static_cast<unsigned char>(number), 100000, stream));
    if (command == "gate") {
      open = false;
      simcuda_enqueue(stream, [](void*) {}, this, [](void* peer) { return static_cast<Peer*>(peer)->open.load() ? 1 : 0; });
    }
    if (command == "spin")  // as a kernel that waits for another one
      simcuda_enqueue(stream, [](void* peer) {
        static_cast<Peer*>(peer)->spinning = true;
        while (!static_cast<Peer*>(peer)->open) usleep(100);
      }, this, nullptr);
    if (command == "spinning") return spinning ? "1" : "0";
    if (command == "close") open = false;
    if (command == "open") open = true;
    if (command == "record") return std::to_string(cuEventRecord(event, stream));
    if (command == "query") return std::to_string(cuEventQuery(event));
    if (command == "synchronize") return std::to_string(cuEventSynchronize(event));
    if (command == "free") {
      const int error = cuMemFree_v2(memory);
      return std::to_string(error) + " " + simcuda_violations();
    }
    if (command == "destroy") return std::to_string(cuEventDestroy_v2(event));
    return "0";
  }
};

int peer() {
  simcuda_set("collect", 1);
  start();
  Peer peer;
  EXPECT(cuStreamCreateWithPriority(&peer.stream, kStreamNonBlocking, 0) == 0);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command, argument;
    words >> command >> argument;
    std::string answer = peer.answer(command, argument);
    for (char& c : answer)
      if (c == '\n') c = ' ';
    std::cout << answer << std::endl;
  }
  return 0;
}

}  // namespace

int main(int, char** arguments) {
  const std::string name = arguments[1] ? arguments[1] : "";
  if (name == "init") return init(std::atoi(arguments[2]));
  if (name == "visible") return visible();
  if (name == "after_exit") return after_exit();
  if (name == "forked") return forked();
  if (name == "faulty") return faulty();
  if (name == "tidy") return tidy(false);
  if (name == "leaks") return tidy(true);
  if (name == "touch") return touch_device_memory();
  if (name == "trap") return trap();
  if (name == "peer") return peer();
  return 98;
}
