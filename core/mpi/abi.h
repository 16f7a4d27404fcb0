// Differences between MPI libraries, whose functions have the same names: the representation of handles, and the
// numeric constants. There are three families, with one table each. Pure functions.
//
//   Open MPI 4, 5, Spectrum MPI     libmpi.so.40      a handle is the address of an exported variable
//   MPICH 3.4 to 5, Intel, Cray     libmpi.so.12      a handle is an int
//   the standard ABI of MPI 5       libmpi_abi.so.1   a handle is a pointer with a small number in it
//
// One type serves for all handles: a pointer-sized integer that is zeroed before a library writes to it. Where handles
// are ints, a library reads and writes the lower half: for arguments by the calling conventions of x86-64 and AArch64,
// otherwise because memory is little-endian. Arrays of handles would have another stride, so no function that takes one
// is used.
//
// Source: mpi.h of Open MPI 5.0.11 and MPICH 5.0.2, mpi_abi.h of MPICH 5.0.2 (the ABI of the MPI standard 5.0, appendix
// A.1).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/status.h"

namespace hvd::mpi {

using Handle = uintptr_t;

enum class Family { open_mpi, mpich, standard };
std::string_view name_of(Family family);  // "Open MPI", "MPICH", "the standard ABI"

// In the standard's order: each level includes the ones before.
enum class Threads { single, funneled, serialized, multiple };
std::string_view name_of(Threads level);  // "MPI_THREAD_MULTIPLE"

// Constants and handles of one MPI library.
struct Abi {
  Family family = Family::mpich;
  Handle world = 0, self = 0, comm_null = 0;
  Handle errors_return = 0;
  Handle byte = 0;
  Handle int8 = 0, int16 = 0, int32 = 0, int64 = 0, uint8 = 0, uint16 = 0, float32 = 0, float64 = 0;
  Handle sum = 0, min = 0, max = 0, product = 0;
  void* status_ignore = nullptr;
  int levels[4] = {0, 1, 2, 3};  // MPI's constant for each Threads level

  // Return the handle of an element type or reduction; 0 if some library does not reduce it, or not as the engine does:
  // 16-bit floats, booleans.
  Handle type_of(DType d) const;
  Handle op_of(ReduceOp op) const;
};

// Buffer sizes for texts from libraries: the maximum over all families.
inline constexpr size_t kVersionBytes = 8192, kErrorBytes = 512;

// Address of an exported name of a library; null if missing.
using Lookup = std::function<void*(const char* name)>;

// Return the family of a library. `path`: its file. MPICH's own libraries also export all names of the standard ABI, so
// the file name decides.
Family family_of(const std::string& path, const Lookup& lookup);
// Return invalid_argument, naming the file and its version text, if that belongs to another family; all constants would
// be wrong.
Status check_version(Family family, const std::string& path, const std::string& version);
// True if the version text is that of Open MPI or a derivative; otherwise it is MPICH's.
bool of_open_mpi(const std::string& version);
// True if a library understands this launcher ("Open MPI", "MPICH"; empty: unknown). A mismatched library treats each
// process as a separate job, or aborts.
bool fits(const std::string& launcher, bool open_mpi);
// Return a short version text for messages: "Open MPI v5.0.11", "MPICH 5.0.2".
std::string short_version(const std::string& version);

// Return internal, naming what is missing, if an Open MPI library does not export a variable.
Status make_abi(Family family, const Lookup& lookup, Abi* out);

// Convert the result of MPI_Init_thread or MPI_Query_thread; an intermediate value counts as the lower level.
Threads level_of(const Abi& abi, int given);

}  // namespace hvd::mpi
