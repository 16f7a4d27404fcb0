// The engine's kernels, compiled for the host as libhvd_kernels_host.so, in which the simulated driver and
// tests find them by name. Exports for each kernel NAME: void hvd_kernel_NAME(const unsigned grid[3], const
// unsigned block[3], const void* parameters, void* (*at)(uint64_t, size_t)), and const size_t
// hvd_kernel_NAME_bytes. at(address, bytes) returns the host address of device memory; it is called for
// exactly the memory that a kernel may access, before the first thread begins. Threads run in sequence.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/parameters.h"
#include "kernels/platform.h"

namespace hvd::kernels {
namespace {

using At = void* (*)(uint64_t, size_t);

uint64_t seen(uint64_t address, uint64_t bytes, At at) {
  return address == 0 || bytes == 0 ? address : reinterpret_cast<uint64_t>(at(address, bytes));
}

void translate(ReduceParameters& p, At at, size_t bytes, size_t) {
  if (p.begin >= p.end) return;
  const uint64_t first = p.begin * bytes, size = (p.end - p.begin) * bytes;
  for (uint32_t i = 0; i < p.source_count; ++i) p.sources[i] = seen(p.sources[i] + first, size, at) - first;
  for (uint32_t i = 0; i < p.destination_count; ++i) p.destinations[i] = seen(p.destinations[i] + first, size, at) - first;
}

void translate(ScaleParameters& p, At at, size_t in_bytes, size_t out_bytes) {
  p.source = seen(p.source, p.count * in_bytes, at);
  p.destination = seen(p.destination, p.count * out_bytes, at);
}

void translate(PackParameters& p, At at, size_t in_bytes, size_t out_bytes) {
  for (uint32_t i = 0; i < p.piece_count; ++i) {
    Piece& piece = p.pieces[i];
    piece.source = seen(piece.source, piece.elements * in_bytes, at);
    piece.destination = seen(piece.destination, piece.elements * out_bytes, at);
  }
}

template <class Parameters, class Kernel>
void run(const unsigned grid[3], const unsigned block[3], const void* parameters, At at, size_t in_bytes, size_t out_bytes, Kernel kernel) {
  Parameters p;
  memcpy(&p, parameters, sizeof p);
  translate(p, at, in_bytes, out_bytes);
  for (unsigned b = 0; b < grid[0]; ++b) {
    for (unsigned t = 0; t < block[0]; ++t) kernel(p, Place{b, grid[0], t, block[0]});
  }
}

}  // namespace
}  // namespace hvd::kernels

#define HVD_KERNEL(name, Parameters, in_bytes, out_bytes, ...)                                                                   \
  extern "C" {                                                                                                                   \
  [[gnu::visibility("default")]] extern const size_t hvd_kernel_##name##_bytes;                                                  \
  const size_t hvd_kernel_##name##_bytes = sizeof(hvd::kernels::Parameters);                                                     \
  [[gnu::visibility("default")]] void hvd_kernel_##name(const unsigned grid[3], const unsigned block[3], const void* parameters, \
                                                        void* (*at)(uint64_t, size_t)) {                                         \
    hvd::kernels::run<hvd::kernels::Parameters>(grid, block, parameters, at, in_bytes, out_bytes,                                \
                                                [](const auto& p, hvd::kernels::Place place) { __VA_ARGS__(p, place); });        \
  }                                                                                                                              \
  }

#include "kernels/kernels.cu"
