// Limits that several floors have to keep alike.
#pragma once

namespace hvd {

// Process sets at a time, set 0 among them: the shared memory of a node has room for the barriers of so many.
inline constexpr int kMaxProcessSets = 256;

}  // namespace hvd
