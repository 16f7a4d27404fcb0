// The driver itself and its devices: cuInit, versions, names, attributes.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

namespace simcuda {
namespace {

Device make_device(int physical) {
  Device device{.physical = physical, .uuid = {}, .uuid_text = {}};
  const char* host = std::getenv("SIMCUDA_HOST");  // tests that play several hosts give each a name
  uint64_t seed = mix(static_cast<uint64_t>(physical) + 1);
  for (const char* c = host ? host : ""; *c; ++c) seed = mix(seed ^ static_cast<unsigned char>(*c));
  for (int half = 0; half < 2; ++half, seed = mix(seed)) std::memcpy(device.uuid.bytes + 8 * half, &seed, 8);
  char digits[3];
  for (char byte : device.uuid.bytes) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    device.uuid_text += digits;
  }
  return device;
}

// What CUDA_VISIBLE_DEVICES says: a list that ends at the first entry that means no device.
std::vector<int> visible(int count) {
  std::vector<int> all;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!list) {
    for (int i = 0; i < count; ++i) all.push_back(i);
    return all;
  }
  std::string rest = list;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string entry = rest.substr(0, comma), digits;
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    int index = -1;
    if (entry.rfind("GPU-", 0) == 0) {
      for (char c : entry.substr(4))
        if (c != '-') digits += c;
      for (int i = 0; i < count; ++i)
        if (!digits.empty() && make_device(i).uuid_text.rfind(digits, 0) == 0) index = i;
    } else {
      char* end = nullptr;
      index = static_cast<int>(std::strtol(entry.c_str(), &end, 10));
      if (end == entry.c_str()) index = -1;
    }
    if (index < 0 || index >= count) break;
    all.push_back(index);
  }
  return all;
}

bool attribute(int which, int physical, int& value) {
  const int version = static_cast<int>(knobs().version);
  switch (which) {
    case 1: value = 1024; return true;               // threads of a block
    case 2:
    case 3: value = 1024; return true;       // block dimensions
    case 4: value = 64; return true;
    case 5: value = 2147483647; return true;         // grid dimensions
    case 6:
    case 7: value = 65535; return true;
    case 8: value = 49152; return true;              // shared memory of a block
    case 10: value = 32; return true;                // warp
    case 16: value = static_cast<int>(knobs().processors); return true;
    case 18: value = 0; return true;                 // integrated
    case 19: value = 1; return true;                 // can map host memory
    case 20: value = 0; return true;                 // compute mode
    case 31: value = 1; return true;                 // concurrent kernels
    case 33: value = 16 + physical; return true;     // PCI bus, device, domain
    case 34:
    case 50: value = 0; return true;
    case 38: value = 50 << 20; return true;          // L2
    case 39: value = 2048; return true;              // threads of a multiprocessor
    case 40: value = 2; return true;                 // copy engines
    case 41: value = 1; return true;                 // unified addressing
    case 75: value = static_cast<int>(knobs().capability) / 10; return true;
    case 76: value = static_cast<int>(knobs().capability) % 10; return true;
    case 91: value = knobs().host_alias ? 0 : 1; return true;
    case 99: value = 1; return true;                 // host register
    case 102:
    case 103:
    case 115:
    case 124: value = 0; return true;  // VMM, POSIX fd, pools, DMA-BUF
    case 122: value = 1; return true;                // 64-bit stream values
    case 125: value = knobs().no_ipc ? 0 : 1; return true;
    case 134: value = 0; return version >= 12020;    // NUMA id
    default: return false;
  }
}

struct ErrorText {
  int error;
  const char *name, *text;
};
const ErrorText kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int text_of(int error, const char** out, const char* ErrorText::* what) {
  if (!out) return kInvalidValue;
  *out = nullptr;
  for (const ErrorText& row : kErrors)
    if (row.error == error) *out = row.*what;
  return *out ? kSuccess : kInvalidValue;
}

}  // namespace

bool valid(CUdevice device) { return device >= 0 && static_cast<size_t>(device) < driver().devices.size(); }

int fill_devices() {
  Driver& d = driver();
  for (int physical : visible(static_cast<int>(knobs().devices))) d.devices.push_back(make_device(physical));
  d.primaries.resize(d.devices.size());
  return d.devices.empty() ? kNoDevice : kSuccess;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuInit(unsigned flags) {
  Call call("cuInit", kEvenIfNotInit | kEvenIfFaulty);
  if (call.error) return call.error;
  if (flags) return kInvalidValue;
  if (knobs().init) return static_cast<int>(knobs().init);
  if (driver().initialised) return kSuccess;
  if (int error = fill_devices()) return error;
  watch_process();
  driver().initialised = true;
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  if (!version) return kInvalidValue;
  *version = static_cast<int>(knobs().version);
  return kSuccess;
}

int cuGetErrorName(int error, const char** name) { return text_of(error, name, &ErrorText::name); }
int cuGetErrorString(int error, const char** text) { return text_of(error, text, &ErrorText::text); }

int cuDeviceGet(CUdevice* device, int ordinal) {
  Call call("cuDeviceGet", kEvenIfFaulty);
  if (call.error) return call.error;
  if (!device) return kInvalidValue;
  if (!valid(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", kEvenIfFaulty);
  if (call.error) return call.error;
  if (!count) return kInvalidValue;
  *count = static_cast<int>(driver().devices.size());
  return kSuccess;
}

int cuDeviceGetName(char* name, int size, CUdevice device) {
  Call call("cuDeviceGetName", kEvenIfFaulty);
  if (call.error) return call.error;
  if (!valid(device)) return kInvalidDevice;
  if (!name || size < 1) return kInvalidValue;
  std::snprintf(name, static_cast<size_t>(size), "Simulated GPU %d", driver().devices[device].physical);
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int which, CUdevice device) {
  Call call("cuDeviceGetAttribute", kEvenIfFaulty);
  if (call.error) return call.error;
  if (!valid(device)) return kInvalidDevice;
  return value && attribute(which, driver().devices[device].physical, *value) ? kSuccess : kInvalidValue;
}

int cuDeviceGetPCIBusId(char* id, int size, CUdevice device) {
  Call call("cuDeviceGetPCIBusId", kEvenIfFaulty);
  if (call.error) return call.error;
  if (!valid(device)) return kInvalidDevice;
  if (!id || size < 13) return kInvalidValue;
  std::snprintf(id, static_cast<size_t>(size), "0000:%02x:00.0", 16 + driver().devices[device].physical);
  return kSuccess;
}

int cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  Call call("cuDeviceGetUuid_v2", kEvenIfFaulty);
  if (call.error) return call.error;
  if (!valid(device)) return kInvalidDevice;
  if (!uuid) return kInvalidValue;
  *uuid = driver().devices[device].uuid;
  return kSuccess;
}

int cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  Call call("cuDeviceTotalMem_v2", kEvenIfFaulty);
  if (call.error) return call.error;
  if (!valid(device)) return kInvalidDevice;
  if (!bytes) return kInvalidValue;
  *bytes = static_cast<size_t>(knobs().memory);
  return kSuccess;
}

int cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  Call call("cuDeviceCanAccessPeer", kEvenIfFaulty);
  if (call.error) return call.error;
  if (!valid(device) || !valid(peer)) return kInvalidDevice;
  if (!can) return kInvalidValue;
  *can = device != peer && knobs().peer_access;
  return kSuccess;
}

}  // extern "C"

__attribute__((visibility("default"))) const char* simcuda_uuid(int device) {
  Driver& d = driver();
  std::unique_lock lock(d.mutex);
  return valid(device) ? d.devices[device].uuid_text.c_str() : nullptr;
}
