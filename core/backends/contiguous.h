// Helpers for algorithms that work in place on contiguous memory. A single tensor is processed directly in its output
// memory. Several tensors are packed into one buffer.
#pragma once
#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// Return the inputs as one contiguous buffer that can be reduced in place. Several inputs are packed into comm.scratch.
std::byte* pack(Comm& comm, const Segments& segments, DType d);
// Write the scaled result to the outputs of all segments.
void unpack(const Segments& segments, DType d, std::byte* data, const Scale& scale);

}  // namespace hvd
