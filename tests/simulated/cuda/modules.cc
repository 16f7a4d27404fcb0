// Modules and their kernels. The PTX is only parsed; the executed code is the same source compiled for the
// host (SIMCUDA_KERNELS, or libhvd_kernels_host.so beside this library), where kernel NAME is hvd_kernel_NAME
// and hvd_kernel_NAME_bytes the size of its one parameter.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "memory.h"
#include "ptx.h"
#include "streams.h"

namespace simcuda {
namespace {

using HostKernel = void (*)(const unsigned grid[3], const unsigned block[3], const void* parameter, void* (*at)(uint64_t, size_t));

struct Function {
  Context* context;
  void* module;
  std::string name;
  HostKernel kernel;
  size_t bytes;
  bool loaded = false;
};
struct Module {
  Context* context;
  Ptx ptx;
};
struct Tables {
  std::unordered_map<void*, std::unique_ptr<Module>> modules;
  std::unordered_map<void*, std::unique_ptr<Function>> functions;
  std::vector<decltype(functions)::node_type> unloaded;  // launched items still refer to their names
};
Tables& tables() {
  static Tables* const all = new Tables;
  return *all;
}

void* host_library() {
  const char* named = std::getenv("SIMCUDA_KERNELS");
  std::string path = named ? named : "";
  Dl_info here{};
  if (!named && dladdr(reinterpret_cast<void*>(&host_library), &here)) {  // beside this library
    path = here.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + "libhvd_kernels_host.so";
  }
  void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
  if (!opened) violation(dlerror());
  return opened;
}

// Options: 5 is the buffer for the compiler's log, 6 its size.
void write_log(const std::string& log, unsigned count, const int* options, void** values) {
  char* buffer = nullptr;
  void** size = nullptr;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == 5) buffer = static_cast<char*>(values[i]);
    if (options[i] == 6) size = &values[i];
  }
  if (!buffer || !size) return;
  const size_t room = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(*size));
  if (!room) return;
  const size_t written = std::min(room - 1, log.size());
  std::memcpy(buffer, log.data(), written);
  buffer[written] = 0;
  *size = reinterpret_cast<void*>(written ? written + 1 : 0);
}

Function* find_function(CUfunction handle, Call& call) {
  auto found = tables().functions.find(handle);
  if (found != tables().functions.end() && found->second->context == call.context) return found->second.get();
  call.error = kInvalidHandle;
  return nullptr;
}

// Lazy loading: the first launch loads, which may wait for the device.
int load(Function& function, Call& call) {
  if (function.loaded) return kSuccess;
  if (int error = unsafe_call(call.name)) return error;
  function.loaded = true;
  return may_wait(call);
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options, void** values) {
  SIMCUDA_CALL(cuModuleLoadDataEx, kNeedsContext | kUnsafe | kMayWait);
  if (!module || !image || (count && (!options || !values))) return kInvalidValue;
  if (!knobs().jit) return kJitCompilerNotFound;
  auto created = std::make_unique<Module>();
  created->context = call.context;
  created->ptx = read_ptx(static_cast<const char*>(image), static_cast<int>(knobs().version), static_cast<int>(knobs().capability));
  write_log(created->ptx.log, count, options, values);
  if (created->ptx.error) return created->ptx.error;
  *module = created.get();
  tables().modules[created.get()] = std::move(created);
  return kSuccess;
}

int cuModuleUnload(CUmodule handle) {
  SIMCUDA_CALL(cuModuleUnload, kNeedsContext | kUnsafe | kMayWait);
  auto module = tables().modules.find(handle);
  if (module == tables().modules.end() || module->second->context != call.context) return kInvalidHandle;
  for (auto function = tables().functions.begin(); function != tables().functions.end();) {
    const auto next = std::next(function);
    if (function->second->module == handle) tables().unloaded.push_back(tables().functions.extract(function));
    function = next;
  }
  tables().modules.erase(module);
  return kSuccess;
}

int cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  SIMCUDA_CALL(cuModuleGetFunction, kNeedsContext | kUnsafe | kMayWait);
  if (!out || !name) return kInvalidValue;
  auto module = tables().modules.find(handle);
  if (module == tables().modules.end() || module->second->context != call.context) return kInvalidHandle;
  auto entry = module->second->ptx.entries.find(name);
  if (entry == module->second->ptx.entries.end()) return kNotFound;
  void* library = host_library();
  if (!library) return kNotFound;
  const std::string symbol = std::string("hvd_kernel_") + name;
  auto kernel = reinterpret_cast<HostKernel>(dlsym(library, symbol.c_str()));
  auto* bytes = static_cast<const size_t*>(dlsym(library, (symbol + "_bytes").c_str()));
  if (!kernel || !bytes) {
    violation(symbol + " or its size is missing in SIMCUDA_KERNELS");
    return kNotFound;
  }
  if (entry->second && entry->second != *bytes)
    violation(std::string(name) + " takes " + std::to_string(entry->second) + " bytes in PTX and " + std::to_string(*bytes) +
              " on the host");
  auto created = std::make_unique<Function>(Function{call.context, handle, name, kernel, *bytes});
  *out = created.get();
  tables().functions[created.get()] = std::move(created);
  return kSuccess;
}

int cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, CUstream stream_handle, void** parameters, void** extra) {
  SIMCUDA_CALL(cuLaunchKernel, kNeedsContext);
  Function* function = find_function(handle, call);
  if (!function) return call.error;
  Stream* stream = find_stream(stream_handle, call.context, call.error);
  if (!stream) return call.error;
  if (stream->context != call.context) return kInvalidHandle;
  const std::array grid{grid_x, grid_y, grid_z}, block{block_x, block_y, block_z};
  if (!parameters || !parameters[0] || extra || shared_bytes > 49152) return kInvalidValue;
  for (unsigned size : {grid_x, grid_y, grid_z, block_x, block_y, block_z})
    if (size == 0) return kInvalidValue;
  if (uint64_t{block_x} * block_y * block_z > 1024 || block_z > 64 || grid_y > 65535 || grid_z > 65535) return kInvalidValue;
  if (int error = load(*function, call)) return error;
  const auto* first = static_cast<const std::byte*>(parameters[0]);
  auto copy = std::make_shared<std::vector<std::byte>>(first, first + function->bytes);
  Item item{.name = function->name.c_str(), .work = Work::kKernel};
  item.run = [=, kernel = function->kernel] {
    kernel(grid.data(), block.data(), copy->data(), simcuda_at);
    return 0;
  };
  if (int error = submit(*stream, std::move(item))) return error;
  if (const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING"); !blocking || blocking != std::string("1") || stream->capture)
    return kSuccess;
  return call.wait([stream, own = stream->submitted] { return stream->completed >= own; });
}

}  // extern "C"
