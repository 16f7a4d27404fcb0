// List of all kernels, shared by the kernel source and its callers. Each dtype of base/dtype_table.h has reduce_<name>,
// scale_<name> and pack_<name>, with the C++ name (such as "boolean"). Each cast below has pack_<from>_to_<to>.
// pack_bytes copies untyped bytes.
#pragma once
#include "base/dtype_table.h"

#define HVD_KERNEL_CASTS(X) \
  X(float32, float16)       \
  X(float32, bfloat16)      \
  X(float16, float32)       \
  X(bfloat16, float32)
