// List of the kernels, for their source and for their callers: for each dtype of base/dtype_table.h reduce_<name>,
// scale_<name> and pack_<name> (with the C++ name, so "boolean"), pack_<from>_to_<to> for each cast below, and
// pack_bytes.
#pragma once
#include "base/dtype_table.h"

#define HVD_KERNEL_CASTS(X) \
  X(float32, float16)       \
  X(float32, bfloat16)      \
  X(float16, float32)       \
  X(bfloat16, float32)
