#include "done.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace hvd::tensorflow {
namespace {

bool is_tensorflows(void* code) {
  Dl_info info{};
  return code && dladdr(code, &info) && info.dli_fname && std::strstr(info.dli_fname, "tensorflow");
}

}  // namespace

// Layout of std::function in libstdc++: two words of storage, then the functions that manage and invoke the stored
// object.
bool Done::readable(TF_AsyncOpKernelDoneCallback* done) {
  static_assert(sizeof(std::function<void()>) == 4 * sizeof(void*), "another standard library: look at its std::function first");
  static std::atomic<void*> good_manager{nullptr}, good_invoker{nullptr};
  void* const* words = reinterpret_cast<void* const*>(done);
  if (words[2] && words[2] == good_manager.load(std::memory_order_relaxed) && words[3] == good_invoker.load(std::memory_order_relaxed))
    return true;
  if (!is_tensorflows(words[2]) || !is_tensorflows(words[3])) return false;
  good_manager.store(words[2], std::memory_order_relaxed);
  good_invoker.store(words[3], std::memory_order_relaxed);
  return true;
}

}  // namespace hvd::tensorflow
