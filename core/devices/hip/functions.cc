#include "devices/hip/functions.h"

#include <string_view>
#include <utility>

namespace hvd {
namespace {

using Pointer = CudaDriver::Pointer;
using Stream = CudaDriver::Stream;
using Event = CudaDriver::Event;

HipFunctions hip;  // global, because the table's rows are plain functions

constexpr int kInvalidContext = 201, kNotSupported = 801;

void* memory_at(Pointer pointer) { return reinterpret_cast<void*>(pointer); }

// Clear HIP's per-thread last error, which includes "event not ready": a framework that checks its own kernels would
// find it. CUDA's driver has no such state.
int answered(int code) {
  if (code != 0) static_cast<void>(hip.last_error());
  return code;
}

int answer_pointer(int code, void* memory, Pointer* out) {
  *out = reinterpret_cast<Pointer>(memory);
  return answered(code);
}

// ---- contexts: deprecated in HIP, where a thread has a current device instead ---------------------------------------
constexpr int kDepth = 16;
thread_local int before[kDepth];
thread_local int depth = 0;

int primary_retain(CudaDriver::Context* context, int device) {
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(device) + 1);  // must not be null
  return 0;
}
int primary_release(int) { return 0; }

int context_push(CudaDriver::Context context) {
  if (depth == kDepth) return kInvalidContext;
  if (const int code = hip.get_device(&before[depth]); code != 0) return answered(code);
  if (const int code = hip.set_device(static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1); code != 0) return answered(code);
  ++depth;
  return 0;
}
int context_pop(CudaDriver::Context* context) {
  if (depth == 0) return kInvalidContext;
  *context = nullptr;
  return answered(hip.set_device(before[--depth]));
}

// ---- functions with other arguments or numbers ----------------------------------------------------------------------
int device_attribute(int* value, int attribute, int device) {
  // Multiprocessors; major and minor compute capability.
  constexpr std::pair<int, int> kNumbers[] = {{16, 63}, {75, 23}, {76, 61}};
  for (const auto& [cuda, amd] : kNumbers) {
    if (attribute == cuda) return answered(hip.device_attribute(value, amd, device));
  }
  return kNotSupported;
}

int copy(Pointer to, Pointer from, size_t bytes, Stream stream) {
  constexpr int kByAddresses = 4;  // hipMemcpyDefault
  return answered(hip.copy(memory_at(to), memory_at(from), bytes, kByAddresses, stream));
}
int zero(Pointer to, unsigned char value, size_t bytes, Stream stream) { return answered(hip.set(memory_at(to), value, bytes, stream)); }

int alloc(Pointer* out, size_t bytes) {
  void* memory = nullptr;
  const int code = hip.alloc(&memory, bytes);
  return answer_pointer(code, memory, out);
}
int free_memory(Pointer pointer) { return answered(hip.free(memory_at(pointer))); }
int alloc_host(void** memory, size_t bytes) {
  constexpr unsigned kPortable = 1;  // for all devices, like CUDA's
  return answered(hip.alloc_host(memory, bytes, kPortable));
}

int ipc_share(CudaDriver::IpcHandle* handle, Pointer pointer) { return answered(hip.ipc_share(handle, memory_at(pointer))); }
int ipc_open(Pointer* out, CudaDriver::IpcHandle handle, unsigned flags) {
  void* memory = nullptr;
  const int code = hip.ipc_open(&memory, handle, flags);
  return answer_pointer(code, memory, out);
}
int ipc_close(Pointer pointer) { return answered(hip.ipc_close(memory_at(pointer))); }

int address_of_host(Pointer* out, void* memory, unsigned flags) {
  void* address = nullptr;
  const int code = hip.address_of_host(&address, memory, flags);
  return answer_pointer(code, address, out);
}

int write_word(Stream stream, Pointer word, uint32_t value, unsigned flags) {
  return answered(hip.write_word(stream, memory_at(word), value, flags));
}
// HIP compares unsigned numbers, so after a counter wraps around (2^31 waits) it waits too long. HIP may also refuse
// this memory, because it was not allocated by hipMallocSignalMemory.
int await_word(Stream stream, Pointer word, uint32_t value, unsigned flags) {
  return answered(hip.await_word(stream, memory_at(word), value, flags, ~uint32_t{0}));
}

int error_name(int code, const char** name) {
  *name = hip.error_name(code);
  return 0;
}
int error_text(int code, const char** text) {
  *text = hip.error_text(code);
  return 0;
}

// ---- not possible on HIP with NVIDIA kernels ------------------------------------------------------------------------
int module_load(CudaDriver::Module*, const void*, unsigned, int*, void**) { return kNotSupported; }
int module_unload(CudaDriver::Module) { return kNotSupported; }
int module_function(CudaDriver::Function*, CudaDriver::Module, const char*) { return kNotSupported; }
int launch(CudaDriver::Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**) {
  return kNotSupported;
}

// Return HIP's name of a CUDA function called by device.cc.
std::string call_name(const char* cuda) {
  constexpr std::pair<std::string_view, const char*> kOthers[] = {
      {"cuCtxGetStreamPriorityRange", "hipDeviceGetStreamPriorityRange"},
      {"cuCtxPushCurrent", "hipSetDevice"},
      {"cuDeviceGetCount", "hipGetDeviceCount"},
      {"cuEventCreate", "hipEventCreateWithFlags"},
      {"cuMemAlloc", "hipMalloc"},
      {"cuMemAllocHost", "hipHostMalloc"},
      {"cuMemHostGetDevicePointer", "hipHostGetDevicePointer"},
      {"cuMemHostRegister", "hipHostRegister"},
      {"cuMemsetD8Async", "hipMemsetAsync"},
  };
  for (const auto& [theirs, ours] : kOthers) {
    if (theirs == cuda) return ours;
  }
  return std::string_view(cuda).starts_with("cu") ? "hip" + std::string(cuda + 2) : cuda;
}

// Rows with the same arguments.
template <auto member, class... Arguments>
int same(Arguments... arguments) {
  return answered((hip.*member)(arguments...));
}

}  // namespace

CudaDriver table_over_hip(const HipFunctions& functions) {
  hip = functions;
  CudaDriver d;
  d.kind = DeviceKind::hip;
  d.interface = "HIP";
  d.no_kernels = "the engine's kernels are PTX, NVIDIA's, which an AMD GPU cannot run";
  d.call_name = call_name;
#define HVD_HIP_SAME(member) d.member = same<&HipFunctions::member>
  HVD_HIP_SAME(init), HVD_HIP_SAME(version), HVD_HIP_SAME(device_get), HVD_HIP_SAME(device_count), HVD_HIP_SAME(device_name);
  HVD_HIP_SAME(device_uuid), HVD_HIP_SAME(priority_range), HVD_HIP_SAME(stream_create), HVD_HIP_SAME(stream_destroy);
  HVD_HIP_SAME(stream_wait), HVD_HIP_SAME(stream_is_capturing), HVD_HIP_SAME(exchange_capture_mode), HVD_HIP_SAME(event_create);
  HVD_HIP_SAME(event_destroy), HVD_HIP_SAME(event_record), HVD_HIP_SAME(event_query), HVD_HIP_SAME(free_host);
  HVD_HIP_SAME(register_host), HVD_HIP_SAME(unregister_host);
#undef HVD_HIP_SAME
  d.device_attribute = device_attribute;
  d.primary_retain = primary_retain, d.primary_release = primary_release, d.context_push = context_push, d.context_pop = context_pop;
  d.copy = copy, d.zero = zero, d.alloc = alloc, d.free = free_memory, d.alloc_host = alloc_host;
  d.ipc_share = ipc_share, d.ipc_open = ipc_open, d.ipc_close = ipc_close;
  d.address_of_host = address_of_host, d.write_word = write_word, d.await_word = await_word;
  d.module_load = module_load, d.module_unload = module_unload, d.module_function = module_function, d.launch = launch;
  d.error_name = error_name, d.error_text = error_text;
  return d;
}

}  // namespace hvd
