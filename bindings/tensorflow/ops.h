#pragma once
#include <string>

#include "c_api.h"

namespace hvd::tensorflow {

// Define all ops. Return "" or TensorFlow's error.
std::string define_ops();

}  // namespace hvd::tensorflow
