// Algorithms that work in place on contiguous memory, for tensors that are seen as one: a single tensor's output is that memory, else they
// are copied together.
#pragma once
#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// The inputs, in memory that is reduced in place; the fusion buffer is of comm.scratch.
std::byte* pack(Comm& comm, const Segments& segments, DType d);
// To the outputs, scaled.
void unpack(const Segments& segments, DType d, std::byte* data, const Scale& scale);

}  // namespace hvd
