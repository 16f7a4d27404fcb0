#include "driver.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace simnccl {

const Driver& driver() {
  static Driver* const d = new Driver;
  static std::mutex* const mutex = new std::mutex;
  std::lock_guard lock(*mutex);
  if (d->found()) return *d;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (const char* path = std::getenv("SIMCUDA_LIBRARY"); !library && path) library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return *d;
  const auto find = [&](const char* name, auto* out) { *out = reinterpret_cast<std::decay_t<decltype(*out)>>(::dlsym(library, name)); };
  find("simcuda_enqueue", &d->enqueue);
  find("simcuda_at", &d->at);
  find("simcuda_current_device", &d->current_device);
  find("simcuda_uuid", &d->uuid);
  find("simcuda_violation", &d->report_violation);
  find("cuCtxGetCurrent", &d->get_context);
  find("cuCtxPushCurrent_v2", &d->push_context);
  return *d;
}

void Driver::violation(const char* text) const {
  if (report_violation) return report_violation(text);
  std::fprintf(stderr, "simnccl: %s\n", text);
  std::abort();
}

}  // namespace simnccl
