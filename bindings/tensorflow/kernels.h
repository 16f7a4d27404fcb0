#pragma once
#include <string>

#include "frontend/api.h"

namespace hvd::tensorflow {

// Register the kernels of all ops. Return "" or the error text of TensorFlow.
std::string register_kernels();

// Set the engine's functions; called by hvd_tf_attach().
void attach(const HvdFrontendApi* api);

// Effect of kernels on the TensorFlow threads that run them: they block these threads or not. The first kernel that
// runs decides this.
enum class Blocking : int { unknown = -1, no = 0, yes = 1 };
Blocking blocking();
void set_blocking(Blocking blocking);

}  // namespace hvd::tensorflow
