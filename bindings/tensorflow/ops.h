#pragma once
#include <string>

#include "c_api.h"

namespace hvd::tensorflow {

// Defines all ops. Returns "" or what TensorFlow says against one.
std::string define_ops();

}  // namespace hvd::tensorflow
