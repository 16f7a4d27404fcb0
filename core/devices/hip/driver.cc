#include "devices/hip/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>

#include "devices/cuda/device.h"
#include "devices/hip/functions.h"

namespace hvd {
namespace {

Status none(const std::string& why) { return Status(Code::invalid_argument, "there is no ROCm GPU to be had: " + why); }

template <class Function>
bool find(void* handle, const char* symbol, Function* out) {
  *out = reinterpret_cast<Function>(::dlsym(handle, symbol));
  return *out != nullptr;
}

// Return the usual cause of a hipInit failure.
const char* hint(int code) {
  return code == 100 ? "; HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES may hide them all, or this user may not open /dev/kfd" : "";
}

struct Loaded {
  CudaDriver driver;
  Status status;
  pid_t process = ::getpid();
};

Loaded start() {
  Loaded loaded;
  loaded.status = load_hip(kHipLibraries, &loaded.driver);
  if (!loaded.status.ok()) return loaded;
  if (const int code = loaded.driver.init(0); code != 0) loaded.status = none(loaded.driver.say(code) + hint(code));
  return loaded;
}

}  // namespace

Status load_hip(std::span<const std::string> libraries, CudaDriver* out) {
  std::string name, reasons;
  void* handle = nullptr;
  for (const int flags : {RTLD_NOLOAD, 0}) {
    for (const std::string& library : libraries) {
      if (handle) break;
      handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
      name = library;
      if (!handle && flags == 0) reasons += (reasons.empty() ? "" : "; ") + std::string(::dlerror());
    }
  }
  if (!handle) return none("HIP's library cannot be loaded (" + reasons + ")");
  HipFunctions functions;
  const char* missing = nullptr;
#define HVD_HIP_FIND(member, symbol, answer, arguments) \
  if (!find(handle, symbol, &functions.member)) missing = symbol;
  HVD_HIP_FUNCTIONS(HVD_HIP_FIND)
#undef HVD_HIP_FIND
  if (missing) {
    ::dlclose(handle);  // none of its functions was called
    return none(name + " has no function " + missing + "; ROCm is too old, 6.0 is the least");
  }
  *out = table_over_hip(functions);
  return {};
}

Status hip_driver(const CudaDriver** out) {
  // Leaked, like CUDA's.
  static std::mutex& mutex = *new std::mutex;
  static Loaded* loaded = nullptr;
  std::lock_guard lock(mutex);
  if (!loaded) loaded = new Loaded(start());
  if (loaded->status.ok() && loaded->process != ::getpid()) {
    return none("the process was forked from one that had used it; start it by 'spawn' or 'forkserver'");
  }
  *out = &loaded->driver;
  return loaded->status;
}

Status open_hip_device(int ordinal, std::shared_ptr<Device>* out) {
  const CudaDriver* driver = nullptr;
  HVD_RETURN_IF_ERROR(hip_driver(&driver));
  return open_device(*driver, ordinal, out);
}

}  // namespace hvd
