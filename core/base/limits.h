// Limits that several layers of the core share.
#pragma once

namespace hvd {

// Maximum number of process sets that can exist at the same time, including set 0. A node's shared memory holds this
// many barriers.
inline constexpr int kMaxProcessSets = 256;

}  // namespace hvd
