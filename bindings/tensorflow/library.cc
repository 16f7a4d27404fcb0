// Entry points of the library. Loading it with tf.load_op_library defines the ops and kernels. Python then attaches the
// engine.
#include <cstdio>
#include <string>

#include "kernels.h"
#include "ops.h"

namespace hvd::tensorflow {
namespace {

// Leak the text deliberately, because another thread can read it during exit.
std::string& trouble() {
  static std::string* const it = new std::string;
  return *it;
}

__attribute__((constructor)) void load() {
  const std::string missing = find_c_api();
  if (!missing.empty()) {
    trouble() = "TensorFlow's library has no function " + missing + "; TensorFlow 2.13 or newer is needed";
    return;
  }
  trouble() = define_ops();
  if (trouble().empty()) trouble() = register_kernels();
}

}  // namespace
}  // namespace hvd::tensorflow

extern "C" {

// Connect this library to the engine. `address` is the HvdFrontendApi from horovod._core.frontend_api(). Return 0 on
// success.
__attribute__((visibility("default"))) int hvd_tf_attach(uintptr_t address) {
  const auto* api = reinterpret_cast<const HvdFrontendApi*>(address);
  if (!hvd::tensorflow::trouble().empty()) return 1;
  if (!api || api->version != HVD_FRONTEND_API_VERSION || api->bytes < sizeof(HvdFrontendApi)) {
    hvd::tensorflow::trouble() = "horovod._core has version " + std::to_string(api ? api->version : 0) +
                                 " of the frontend interface, this library version " + std::to_string(HVD_FRONTEND_API_VERSION) +
                                 "; they belong to different installations: reinstall horovod";
    return 1;
  }
  hvd::tensorflow::attach(api);
  return 0;
}

// Return the reason why hvd_tf_attach() failed, or "" if it did not.
__attribute__((visibility("default"))) const char* hvd_tf_trouble() { return hvd::tensorflow::trouble().c_str(); }

// Return -1 if no collective has run yet, 0 if collectives run asynchronously, and 1 if they block TensorFlow's
// threads.
__attribute__((visibility("default"))) int hvd_tf_blocking() { return static_cast<int>(hvd::tensorflow::blocking()); }
// Set whether kernels block TensorFlow's threads. Without this call, the first kernel to run determines this.
__attribute__((visibility("default"))) void hvd_tf_set_blocking(int blocking) {
  hvd::tensorflow::set_blocking(blocking ? hvd::tensorflow::Blocking::yes : hvd::tensorflow::Blocking::no);
}

}  // extern "C"
