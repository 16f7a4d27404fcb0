// Limits that several layers of the core share.
#pragma once

namespace hvd {

// Maximum number of process sets that exist at a time, including set 0. A node's shared memory has room for this many
// barriers.
inline constexpr int kMaxProcessSets = 256;

}  // namespace hvd
