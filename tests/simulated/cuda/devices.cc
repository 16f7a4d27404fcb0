// The driver itself and its devices: cuInit, versions, names, attributes.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

namespace simcuda {
namespace {

Device make_device(int physical) {
  Device device{.physical = physical, .uuid = {}, .uuid_text = {}};
  const char* host = std::getenv("SIMCUDA_HOST");  // tests that simulate several hosts give each a name
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

// Parses CUDA_VISIBLE_DEVICES: the list ends at the first invalid entry.
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

bool attribute(int which, int& value) {
  switch (which) {
    case 16: value = 4; return true;   // multiprocessors
    case 40: value = 2; return true;   // copy engines
    case 41:                           // unified addressing
    case 91:  // a registered address is valid on the device
    case 99: value = 1; return true;   // host register
    case 75: value = static_cast<int>(knobs().capability) / 10; return true;
    case 76: value = static_cast<int>(knobs().capability) % 10; return true;
    case 115: value = 0; return true;  // memory pools
    case 122: value = 0; return true;  // 64-bit stream values
    case 125: value = knobs().no_ipc ? 0 : 1; return true;
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
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
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
  SIMCUDA_CALL(cuInit, kEvenIfNotInit | kEvenIfFaulty);
  if (flags) return kInvalidValue;
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
  SIMCUDA_CALL(cuDeviceGet, kEvenIfFaulty);
  if (!device) return kInvalidValue;
  if (!valid(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  SIMCUDA_CALL(cuDeviceGetCount, kEvenIfFaulty);
  if (!count) return kInvalidValue;
  *count = static_cast<int>(driver().devices.size());
  return kSuccess;
}

int cuDeviceGetName(char* name, int size, CUdevice device) {
  SIMCUDA_CALL(cuDeviceGetName, kEvenIfFaulty);
  if (!valid(device)) return kInvalidDevice;
  if (!name || size < 1) return kInvalidValue;
  std::snprintf(name, static_cast<size_t>(size), "Simulated GPU %d", driver().devices[device].physical);
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int which, CUdevice device) {
  SIMCUDA_CALL(cuDeviceGetAttribute, kEvenIfFaulty);
  if (!valid(device)) return kInvalidDevice;
  return value && attribute(which, *value) ? kSuccess : kInvalidValue;
}

int cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  SIMCUDA_CALL(cuDeviceGetUuid_v2, kEvenIfFaulty);
  if (!valid(device)) return kInvalidDevice;
  if (!uuid) return kInvalidValue;
  *uuid = driver().devices[device].uuid;
  return kSuccess;
}

}  // extern "C"

__attribute__((visibility("default"))) const char* simcuda_uuid(int device) {
  Driver& d = driver();
  std::unique_lock lock(d.mutex);
  return valid(device) ? d.devices[device].uuid_text.c_str() : nullptr;
}
