#pragma once

namespace hvd {

// Maximum number of process sets that can exist at the same time, including the global set. A node's shared memory has
// room for this many.
inline constexpr int kMaxProcessSets = 256;

}  // namespace hvd
