// Kernels for CPUs with AVX2 and F16C.
#if defined(__x86_64__)
#define HVD_KERNEL_WIDTH 32
#define HVD_KERNEL_NAME "avx2"
#define HVD_KERNEL_F16C 1
#include "collectives/kernels_impl.h"

namespace hvd {

const Kernels* kernels_avx2() { return &kTable; }

}  // namespace hvd
#endif
