#pragma once
#include <string>

#include "c_api.h"

namespace hvd::tensorflow {

// Define all ops. Return an empty string on success, or TensorFlow's error message.
std::string define_ops();

}  // namespace hvd::tensorflow
