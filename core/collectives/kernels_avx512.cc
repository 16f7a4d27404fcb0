// Kernels for CPUs with AVX-512 F, BW, VL and DQ.
#if defined(__x86_64__)
#define HVD_KERNEL_WIDTH 64
#define HVD_KERNEL_NAME "avx512"
#define HVD_KERNEL_F16C 1
#include "collectives/kernels_impl.h"

namespace hvd {

const Kernels* kernels_avx512() { return &kTable; }

}  // namespace hvd
#endif
