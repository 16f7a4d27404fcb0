// Handle values by family (SIMMPI_FAMILY: 1 Open MPI, 2 MPICH, 3 the standard ABI): numbers and names of
// mpi.h of Open MPI 5.0.11 and MPICH 5.0.2, and of mpi_abi.h of the latter.
#pragma once
#include <cstddef>
#include <cstdint>

#define SIMMPI_EXPORT extern "C" __attribute__((visibility("default")))

// X(id, Open MPI's variable, MPICH's number, the standard's)
#define SIMMPI_HANDLES(X)                                     \
  X(kWorldComm, ompi_mpi_comm_world, 0x44000000, 0x101)       \
  X(kSelfComm, ompi_mpi_comm_self, 0x44000001, 0x102)         \
  X(kCommNull, ompi_mpi_comm_null, 0x04000000, 0x100)         \
  X(kErrorsReturn, ompi_mpi_errors_return, 0x54000001, 0x143) \
  X(kByte, ompi_mpi_byte, 0x4c00010d, 0x247)                  \
  X(kInt8, ompi_mpi_int8_t, 0x4c000137, 0x240)                \
  X(kInt16, ompi_mpi_int16_t, 0x4c000238, 0x248)              \
  X(kInt32, ompi_mpi_int32_t, 0x4c000439, 0x250)              \
  X(kInt64, ompi_mpi_int64_t, 0x4c00083a, 0x258)              \
  X(kUint8, ompi_mpi_uint8_t, 0x4c00013b, 0x241)              \
  X(kUint16, ompi_mpi_uint16_t, 0x4c00023c, 0x249)            \
  X(kFloat, ompi_mpi_float, 0x4c00040a, 0x210)                \
  X(kDouble, ompi_mpi_double, 0x4c00080b, 0x214)              \
  X(kMax, ompi_mpi_op_max, 0x58000001, 0x23)                  \
  X(kMin, ompi_mpi_op_min, 0x58000002, 0x22)                  \
  X(kSum, ompi_mpi_op_sum, 0x58000003, 0x21)                  \
  X(kProduct, ompi_mpi_op_prod, 0x58000004, 0x24)

namespace simmpi {

enum Id {
#define SIMMPI_ID(id, ...) id,
  SIMMPI_HANDLES(SIMMPI_ID)
#undef SIMMPI_ID
      kIds
};

#if SIMMPI_FAMILY == 2
using H = int;
#else
using H = void*;
#endif
constexpr int kLevels[4] = {
#if SIMMPI_FAMILY == 3
    0, 1024, 2048, 4096
#else
    0, 1, 2, 3
#endif
};
#if SIMMPI_FAMILY == 2
inline void* const kStatusIgnore = reinterpret_cast<void*>(intptr_t{1});
#else
inline void* const kStatusIgnore = nullptr;
#endif

H handle_of(Id id);
Id id_of(H handle);  // kIds: none of these
// Handles of objects created at run time, by numbers from 1. 0: not such a handle.
H made_handle(int number);
int number_of(H handle);

}  // namespace simmpi
