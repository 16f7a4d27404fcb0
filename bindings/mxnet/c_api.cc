#include "c_api.h"

#include <dlfcn.h>

namespace hvd::mxnet {
namespace {

CApi functions;

template <class Function>
bool look_up(void* library, const char* symbol, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, symbol));
  return *out != nullptr;
}

// Look up MXNet's three functions for array layouts. If one is missing, use none of them.
void find_reordering(void* library) {
  const bool there = look_up(library, "_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv", &functions.reorder_later) &&
                     look_up(library, "_ZNK5mxnet7NDArray5Chunk8IsMKLDNNEv", &functions.is_reordered) &&
                     look_up(library, "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv", &functions.reorder);
  if (there) return;
  functions.reorder_later = nullptr;
  functions.is_reordered = nullptr;
  functions.reorder = nullptr;
}

}  // namespace

const CApi& mx() { return functions; }

std::string find_c_api(void* library) {
#define HVD_MXNET_FIND(name, arguments) \
  if (!look_up(library, "MX" #name, &functions.name)) return "MX" #name;
  HVD_MXNET_FUNCTIONS(HVD_MXNET_FIND)
#undef HVD_MXNET_FIND
  if (!look_up(library, "MXGetLastError", &functions.GetLastError)) return "MXGetLastError";
  find_reordering(library);
  return "";
}

}  // namespace hvd::mxnet
