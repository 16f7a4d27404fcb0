// Compiled for the host as the real kernels are, into a library of its own.
#include "test_kernels.h"

#include <cstddef>

extern "C" {

__attribute__((visibility("default"))) extern const size_t hvd_kernel_fill_bytes;
const size_t hvd_kernel_fill_bytes = sizeof(FillParameters);

__attribute__((visibility("default"))) void hvd_kernel_fill(const unsigned grid[3], const unsigned block[3], const void* parameter,
                                                            void* (*at)(uint64_t, size_t)) {
  const auto& p = *static_cast<const FillParameters*>(parameter);
  auto* bytes = static_cast<unsigned char*>(at(p.memory, p.bytes));
  for (uint64_t i = 0; i < uint64_t{grid[0]} * block[0] && i < p.bytes; ++i) bytes[i] = static_cast<unsigned char>(p.value);
}
}
