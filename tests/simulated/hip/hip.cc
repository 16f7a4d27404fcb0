// HIP's functions over the simulated CUDA driver: its signatures, its numbers, a device for each thread in place of contexts, and a last
// error that stays until somebody asks. No more of it than the engine uses; what it was never seen to do on a GPU it does not do here.
#include <cstdint>
#include <mutex>

#include "../cuda/cuda_abi.h"
#include "../cuda/simcuda.h"

namespace {

constexpr int kInvalidMemcpyDirection = 21;
constexpr unsigned kHostPortable = 1;

thread_local int the_device = 0;
thread_local int last = 0;

int said(int code) {
  if (code) last = code;
  return code;
}

// As HIP does it: a thread that has chosen no device works on the first.
int enter(int device) {
  static std::mutex mutex;
  static CUcontext contexts[64];
  std::lock_guard lock(mutex);
  if (device < 0 || device >= 64) return kInvalidDevice;
  if (!contexts[device]) {
    if (int code = cuDevicePrimaryCtxRetain(&contexts[device], device)) return code;
  }
  return cuCtxSetCurrent(contexts[device]);
}
template <class Call>
int on_device(Call call) {
  const int code = simcuda_current_device() == the_device ? 0 : enter(the_device);
  return said(code ? code : call());
}
CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

#define SIMHIP_API extern "C" __attribute__((visibility("default")))

SIMHIP_API int hipInit(unsigned flags) { return said(cuInit(flags)); }
SIMHIP_API int hipDriverGetVersion(int* version) {
  *version = 60443482;
  return 0;
}
SIMHIP_API int hipGetLastError() {
  const int code = last;
  last = 0;
  return code;
}
SIMHIP_API const char* hipGetErrorName(int code) {
  switch (code) {
    case kSuccess: return "hipSuccess";
    case kOutOfMemory: return "hipErrorOutOfMemory";
    case kInvalidDevice: return "hipErrorInvalidDevice";
    case 719: return "hipErrorLaunchFailure";
    default: return "hipErrorUnknown";
  }
}
SIMHIP_API const char* hipGetErrorString(int code) {
  const char* text = nullptr;
  cuGetErrorString(code, &text);
  return text ? text : "unknown error";
}

SIMHIP_API int hipDeviceGet(int* device, int ordinal) { return said(cuDeviceGet(device, ordinal)); }
SIMHIP_API int hipGetDeviceCount(int* count) { return said(cuDeviceGetCount(count)); }
SIMHIP_API int hipDeviceGetName(char* name, int length, int device) { return said(cuDeviceGetName(name, length, device)); }
SIMHIP_API int hipDeviceGetUuid(CUuuid* uuid, int device) { return said(cuDeviceGetUuid_v2(uuid, device)); }
SIMHIP_API int hipDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 63: return said(cuDeviceGetAttribute(value, 16, device));
    case 23: *value = 9; return 0;  // of gfx942
    case 61: *value = 4; return 0;
    default: return said(kInvalidValue);
  }
}
SIMHIP_API int hipSetDevice(int device) {
  if (int code = enter(device)) return said(code);
  the_device = device;
  return 0;
}
SIMHIP_API int hipGetDevice(int* device) {
  *device = the_device;
  return 0;
}
SIMHIP_API int hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return on_device([=] { return cuCtxGetStreamPriorityRange(least, greatest); });
}

SIMHIP_API int hipStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return on_device([=] { return cuStreamCreateWithPriority(stream, flags, priority); });
}
SIMHIP_API int hipStreamDestroy(void* stream) {
  return on_device([=] { return cuStreamDestroy_v2(stream); });
}
SIMHIP_API int hipStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return on_device([=] { return cuStreamWaitEvent(stream, event, flags); });
}
SIMHIP_API int hipStreamIsCapturing(void* stream, int* status) {
  return on_device([=] { return cuStreamIsCapturing(stream, status); });
}
#ifndef SIMHIP_OLD
SIMHIP_API int hipThreadExchangeStreamCaptureMode(int* mode) { return said(cuThreadExchangeStreamCaptureMode(mode)); }
#endif
SIMHIP_API int hipStreamWriteValue32(void* stream, void* word, uint32_t value, unsigned flags) {
  return on_device([=] { return cuStreamWriteValue32_v2(stream, address(word), value, flags); });
}
SIMHIP_API int hipStreamWaitValue32(void* stream, void* word, uint32_t value, unsigned flags, uint32_t mask) {
  if (mask != ~uint32_t{0}) simcuda_violation("hipStreamWaitValue32 looks at a part of the word");
  return on_device([=] { return cuStreamWaitValue32_v2(stream, address(word), value, flags); });
}

SIMHIP_API int hipEventCreateWithFlags(void** event, unsigned flags) {
  return on_device([=] { return cuEventCreate(event, flags); });
}
SIMHIP_API int hipEventDestroy(void* event) {
  return on_device([=] { return cuEventDestroy_v2(event); });
}
SIMHIP_API int hipEventRecord(void* event, void* stream) {
  return on_device([=] { return cuEventRecord(event, stream); });
}
SIMHIP_API int hipEventQuery(void* event) {
  return on_device([=] { return cuEventQuery(event); });
}

SIMHIP_API int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  if (kind != 4) return said(kInvalidMemcpyDirection);  // the others have to be right about both addresses
  return on_device([=] { return cuMemcpyAsync(address(to), address(from), bytes, stream); });
}
SIMHIP_API int hipMemsetAsync(void* to, int value, size_t bytes, void* stream) {
  return on_device([=] { return cuMemsetD8Async(address(to), static_cast<unsigned char>(value), bytes, stream); });
}
SIMHIP_API int hipMalloc(void** memory, size_t bytes) {
  return on_device([=] { return cuMemAlloc_v2(reinterpret_cast<CUdeviceptr*>(memory), bytes); });
}
SIMHIP_API int hipFree(void* memory) {
  return on_device([=] { return cuMemFree_v2(address(memory)); });
}
SIMHIP_API int hipHostMalloc(void** memory, size_t bytes, unsigned flags) {
  if (flags != kHostPortable) return said(kInvalidValue);
  return on_device([=] { return cuMemAllocHost_v2(memory, bytes); });
}
SIMHIP_API int hipHostFree(void* memory) {
  return on_device([=] { return cuMemFreeHost(memory); });
}
SIMHIP_API int hipHostRegister(void* memory, size_t bytes, unsigned flags) {
  return on_device([=] { return cuMemHostRegister_v2(memory, bytes, flags); });
}
SIMHIP_API int hipHostUnregister(void* memory) {
  return on_device([=] { return cuMemHostUnregister(memory); });
}
SIMHIP_API int hipHostGetDevicePointer(void** address_of, void* memory, unsigned flags) {
  return on_device([=] { return cuMemHostGetDevicePointer_v2(reinterpret_cast<CUdeviceptr*>(address_of), memory, flags); });
}

SIMHIP_API int hipIpcGetMemHandle(CUipcMemHandle* handle, void* memory) {
  return on_device([=] { return cuIpcGetMemHandle(handle, address(memory)); });
}
SIMHIP_API int hipIpcOpenMemHandle(void** memory, CUipcMemHandle handle, unsigned flags) {
  return on_device([=] { return cuIpcOpenMemHandle_v2(reinterpret_cast<CUdeviceptr*>(memory), handle, flags); });
}
SIMHIP_API int hipIpcCloseMemHandle(void* memory) {
  return on_device([=] { return cuIpcCloseMemHandle(address(memory)); });
}
