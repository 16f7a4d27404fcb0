#include "c_api.h"

#include <dlfcn.h>

namespace hvd::tensorflow {
namespace {

CApi functions;

// Search only libraries that are already loaded, so that this library never loads a second TensorFlow.
void* find(const char* symbol) {
  static void* const handles[] = {
      dlopen("libtensorflow_framework.so.2", RTLD_NOLOAD | RTLD_LAZY),
      dlopen("libtensorflow_framework.so.3", RTLD_NOLOAD | RTLD_LAZY),
      dlopen("libtensorflow_cc.so.2", RTLD_NOLOAD | RTLD_LAZY),
  };
  for (void* handle : handles) {
    if (void* found = handle ? dlsym(handle, symbol) : nullptr) return found;
  }
  return dlsym(RTLD_DEFAULT, symbol);
}

template <class Function>
bool look_up(const char* symbol, Function* out) {
  *out = reinterpret_cast<Function>(find(symbol));
  return *out != nullptr;
}

}  // namespace

const CApi& tf() { return functions; }

const char* find_c_api() {
#define HVD_TF_FIND(result, name, arguments) \
  if (!look_up("TF_" #name, &functions.name)) return "TF_" #name;
  HVD_TF_FUNCTIONS(HVD_TF_FIND)
#undef HVD_TF_FIND
#define HVD_TF_TRY(result, name, arguments) look_up("TF_" #name, &functions.name);
  HVD_TF_OPTIONAL_FUNCTIONS(HVD_TF_TRY)
#undef HVD_TF_TRY
  return "";
}

}  // namespace hvd::tensorflow
