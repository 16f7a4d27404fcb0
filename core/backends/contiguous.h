// Helpers for algorithms that work in place on contiguous memory. The output of a single tensor is used directly;
// several tensors are packed.
#pragma once
#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// Return the inputs as contiguous memory that can be reduced in place. Several inputs are packed into comm.scratch.
std::byte* pack(Comm& comm, const Segments& segments, DType d);
// Write the scaled result to the outputs.
void unpack(const Segments& segments, DType d, std::byte* data, const Scale& scale);

}  // namespace hvd
