// NCCL's arithmetic, which differs from the host's: sums of 16-bit floats are rounded after each addition,
// min and max ignore NaN, an average of floats multiplies by 1/n in the type of the data before the sum, one
// of integers divides the wrapped sum.
#pragma once
#include <cstddef>
#include <cstdint>

#include "nccl_abi.h"

namespace simnccl {

size_t bytes_of(ncclDataType_t type);

struct Reduce {
  ncclDataType_t type = ncclFloat32;
  int op = ncclSum;             // below ncclNumOps
  bool premultiplied = false;
  unsigned char scalar[8] = {};  // of `type`
  int size = 1;
};
// out[i] = in[0][i] op in[1][i] ...: blocks begin at different ranks, as in rings.
void reduce(const Reduce& how, void* out, const void* const* in, size_t count);

}  // namespace simnccl
