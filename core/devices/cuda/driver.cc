#include "devices/cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>

namespace hvd {
namespace {

struct Loaded {
  CudaDriver driver;
  Status status;
};

template <class Function>
bool find(void* handle, const char* symbol, Function* out) {
  *out = reinterpret_cast<Function>(::dlsym(handle, symbol));
  return *out != nullptr;
}

// Return the most common cause of a cuInit failure, for the error message.
const char* hint(int code) {
  switch (code) {
    case 3: return "; the process was forked from one that had used the GPU: start it by 'spawn' or 'forkserver'";
    case 46: return "; another process uses the GPU exclusively (compute mode)";
    case 100: return "; CUDA_VISIBLE_DEVICES may hide them all";
    case 802: return "; the NVSwitch manager (nvidia-fabricmanager) is not running";
    case 803: return "; the driver's library and its kernel module differ in version: restart the machine";
    case 999: return "; often the module nvidia_uvm is missing, or an MPS server is in a bad state";
    default: return "";
  }
}

Loaded load(const std::string& library) {
  Loaded loaded;
  const auto fail = [&loaded](const std::string& why) {
    loaded.status = Status(Code::invalid_argument, "no CUDA GPU is available: " + why);
    return loaded;
  };
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return fail("the driver's library cannot be loaded (" + std::string(::dlerror()) + ")");
  CudaDriver& d = loaded.driver;
#define HVD_CUDA_FIND(member, symbol, arguments) \
  if (!find(handle, symbol, &d.member)) return fail(library + " has no function " symbol "; the driver must be 530 or newer");
  HVD_CUDA_FUNCTIONS(HVD_CUDA_FIND)
#undef HVD_CUDA_FIND
  if (const int code = d.init(0); code != 0) return fail(d.describe(code) + hint(code));
  return loaded;
}

}  // namespace

std::string CudaDriver::describe(int code) const {
  const char *name = nullptr, *text = nullptr;
  std::string message = "CUDA error " + std::to_string(code);
  if (error_name(code, &name) == 0 && name) message += std::string(" (") + name + ")";
  if (error_text(code, &text) == 0 && text) message += std::string(": ") + text;
  return message;
}

Status CudaDriver::check(int code, const char* what) const {
  if (code == 0) return {};
  return Status(Code::internal, std::string(what) + " failed: " + describe(code));
}

Status cuda_driver(const std::string& library, const CudaDriver** out) {
  // Leak the mutex on purpose, so that it stays valid during exit handlers. If a process has used the driver and then
  // forks, driver calls in the child return error 3 (CUDA_ERROR_NOT_INITIALIZED).
  static std::mutex& mutex = *new std::mutex;
  static Loaded* loaded = nullptr;
  std::lock_guard lock(mutex);
  if (!loaded) loaded = new Loaded(load(library));
  *out = &loaded->driver;
  return loaded->status;
}

}  // namespace hvd
