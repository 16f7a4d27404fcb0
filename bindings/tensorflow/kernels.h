#pragma once
#include <string>

#include "face/api.h"

namespace hvd::tensorflow {

// Registers the kernels of all ops. Returns "" or what TensorFlow says against one.
std::string register_kernels();

// The engine's functions, from hvd_tf_attach() on.
void attach(const HvdFaceApi* api);

// Do kernels block the threads that TensorFlow runs them on? Decided when the first one runs.
enum class Blocking : int { unknown = -1, no = 0, yes = 1 };
Blocking blocking();
void set_blocking(Blocking blocking);

}  // namespace hvd::tensorflow
