// Kernels for the baseline of the architecture: SSE2 on x86-64, NEON on AArch64.
#define HVD_KERNEL_WIDTH 16
#define HVD_KERNEL_NAME "plain"
#include "collectives/kernels_impl.h"

namespace hvd {

const Kernels* kernels_plain() { return &kTable; }

}  // namespace hvd
