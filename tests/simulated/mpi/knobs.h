// Options (simmpi.h lists them), and error reports.
#pragma once
#include <string>

namespace simmpi {

std::string knob(const char* name);  // of SIMMPI_NAME; empty: not set
long knob_number(const char* name, long otherwise);

// Called at the start of each MPI_NAME: counts the call, and blocks if requested. True: the call must fail.
bool enter(const char* name);
// True if operations begun by MPI_NAME never complete, or fail later.
bool never_ends(const char* name);
bool breaks(const char* name);

[[noreturn]] void mistake(const std::string& text);

}  // namespace simmpi
