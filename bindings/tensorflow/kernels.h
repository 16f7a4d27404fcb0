#pragma once
#include <string>

#include "frontend/api.h"

namespace hvd::tensorflow {

// Register the kernels of all ops. Return an empty string on success, or TensorFlow's error message.
std::string register_kernels();

// Set the engine's functions; called by hvd_tf_attach().
void attach(const HvdFrontendApi* api);

// Records whether kernels block the TensorFlow threads that run them. The first kernel that runs determines the value.
enum class Blocking : int { unknown = -1, no = 0, yes = 1 };
Blocking blocking();
void set_blocking(Blocking blocking);

}  // namespace hvd::tensorflow
