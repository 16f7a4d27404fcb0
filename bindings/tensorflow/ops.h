#pragma once
#include <string>

#include "c_api.h"

namespace hvd::tensorflow {

// Define all ops. Return "" or the error text of TensorFlow.
std::string define_ops();

}  // namespace hvd::tensorflow
