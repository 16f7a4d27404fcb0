// What differs between MPI libraries although their functions have the same names: how a handle looks, which numbers stand for what.
// There are three families, and one table for each. Pure: functions of their arguments.
//
//   Open MPI 4, 5, Spectrum MPI     libmpi.so.40      a handle is the address of an exported variable
//   MPICH 3.4 to 5, Intel, Cray     libmpi.so.12      a handle is an int
//   the standard ABI of MPI 5       libmpi_abi.so.1   a handle is a pointer with a small number in it
//
// One type serves for all handles, an integer of a pointer's size that is zeroed before a library writes to it: where handles are ints, it
// reads and writes the lower half, as the calling conventions of x86-64 and AArch64 have it for arguments, and little-endian memory for
// the rest. Arrays of handles would have another stride, so no function that takes any is used.
//
// Source: mpi.h of Open MPI 5.0.11 and MPICH 5.0.2, mpi_abi.h of MPICH 5.0.2 (the ABI of the MPI standard 5.0, appendix A.1).
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

// In the order of the standard: each allows what the one before does.
enum class Threads { single, funneled, serialized, multiple };
std::string_view name_of(Threads level);  // "MPI_THREAD_MULTIPLE"

struct Abi {
  Family family = Family::mpich;
  Handle world = 0, self = 0, comm_null = 0;
  Handle errors_return = 0;
  Handle byte = 0;
  Handle int8 = 0, int16 = 0, int32 = 0, int64 = 0, uint8 = 0, uint16 = 0, float32 = 0, float64 = 0;
  Handle sum = 0, min = 0, max = 0, product = 0;
  void* status_ignore = nullptr;
  int levels[4] = {0, 1, 2, 3};  // by Threads

  // Of an element. 0 for what not every library reduces, or not as we do: 16-bit floats, booleans.
  Handle type_of(DType d) const;
  Handle op_of(ReduceOp op) const;
};

// Bytes for the texts that libraries write: the most that any family asks for.
inline constexpr size_t kVersionBytes = 8192, kErrorBytes = 512;

// Address of what a library exports under this name; null: nothing.
using Lookup = std::function<void*(const char* name)>;

// `path`: of the library's file. MPICH's own libraries export all names of the standard ABI's too, so that the file's name decides.
Family family_of(const std::string& path, const Lookup& lookup);
// invalid_argument, naming the file and what it says, when that belongs to another family: then every number would be wrong.
Status check_version(Family family, const std::string& path, const std::string& version);
// Whose it is, from that text: Open MPI's, or what is made of it; else MPICH's.
bool of_open_mpi(const std::string& version);
// Does a library understand this launcher ("Open MPI", "MPICH"; empty: not known)? One of the other MPI takes each process for a job of its
// own, or ends it.
bool fits(const std::string& launcher, bool open_mpi);
// What of a version's text a message shows: "Open MPI v5.0.11", "MPICH 5.0.2".
std::string short_version(const std::string& version);

// internal, naming what is missing, when a library of Open MPI's does not export a variable.
Status make_abi(Family family, const Lookup& lookup, Abi* out);

// The level of what MPI_Init_thread or MPI_Query_thread gave: what lies between two counts as the lower.
Threads level_of(const Abi& abi, int given);

}  // namespace hvd::mpi
