// Differences between MPI libraries. All libraries have the same function names, but different handles and numeric
// constants. They fall into three families, each with its own table. The functions here keep no state.
//
// Families of MPI libraries, with the file names of the libraries:
//   - Open MPI 4 and 5 and Spectrum MPI (libmpi.so.40): a handle is the address of an exported variable.
//   - MPICH 3.4 to 5, Intel MPI and Cray MPI (libmpi.so.12): a handle is an int.
//   - The standard ABI of MPI 5 (libmpi_abi.so.1): a handle is a pointer that contains a small number.
//
// One type represents the handles of all MPI libraries: a pointer-sized integer that is set to zero before a library
// writes to it. Where handles are ints, a library reads and writes the lower half. The calling conventions of x86-64
// and AArch64 guarantee this for arguments, and the little-endian order guarantees it in memory. Arrays of handles
// would have a different stride, so no function that takes an array is used.
//
// Sources: mpi.h of Open MPI 5.0.11 and MPICH 5.0.2, and mpi_abi.h of MPICH 5.0.2 (the ABI of the MPI standard 5.0,
// appendix A.1).
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
// Return a name for error messages: "Open MPI", "MPICH" or "the standard ABI".
std::string_view name_of(Family family);

// Thread levels of MPI, in the order of the MPI standard. Each level includes the levels before it.
enum class Threads { single, funneled, serialized, multiple };
// Return the name of the level, for example "MPI_THREAD_MULTIPLE".
std::string_view name_of(Threads level);

// Constants and handles of one MPI library.
struct Abi {
  Family family = Family::mpich;
  Handle world = 0, self = 0, comm_null = 0;
  Handle errors_return = 0;
  Handle byte = 0;
  Handle int8 = 0, int16 = 0, int32 = 0, int64 = 0, uint8 = 0, uint16 = 0, float32 = 0, float64 = 0;
  Handle sum = 0, min = 0, max = 0, product = 0;
  void* status_ignore = nullptr;
  // MPI's values for the thread levels (enum Threads), in order.
  int levels[4] = {0, 1, 2, 3};

  // Return the handle of an element type or reduction. For 16-bit floats and booleans it is 0, because not all MPI libraries reduce them as
  // the engine does.
  Handle type_of(DType d) const;
  Handle op_of(ReduceOp op) const;
};

// Buffer sizes in bytes for version and error strings: the maximum over the ABIs of all three families.
inline constexpr size_t kVersionBytes = 8192, kErrorBytes = 512;

// Function that returns the address of an exported symbol of the library, or null.
using Lookup = std::function<void*(const char* name)>;

// Return the family of a library. If the exported names are ambiguous, the library's file name in `path` decides:
// MPICH's own libraries also export all names of the standard ABI.
Family family_of(const std::string& path, const Lookup& lookup);
// Check that the library's version string belongs to this family, because with another family's constants nothing would work. The error is
// invalid_argument and names the file and its version string.
Status check_version(Family family, const std::string& path, const std::string& version);
// True if the version string is from Open MPI or a derivative, false if it is from MPICH.
bool of_open_mpi(const std::string& version);
// True if processes started by `launcher` ("Open MPI", "MPICH", or empty if unknown) can use the library. With the wrong launcher, a
// library aborts or treats each process as a separate job.
bool fits(const std::string& launcher, bool open_mpi);
// Return a short version string for error messages, for example "Open MPI v5.0.11" or "MPICH 5.0.2".
std::string short_version(const std::string& version);

// Fill `out` with the function table, constants and handles for an ABI family. If an Open MPI library does not export a
// variable, return Code::internal with the missing name.
Status make_abi(Family family, const Lookup& lookup, Abi* out);

// Convert the result of MPI_Init_thread or MPI_Query_thread. An intermediate value counts as the next lower level.
Threads level_of(const Abi& abi, int given);

}  // namespace hvd::mpi
