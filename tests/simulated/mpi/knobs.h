// What can be set from outside (simmpi.h lists it), and how mistakes are told.
#pragma once
#include <string>

namespace simmpi {

std::string knob(const char* name);  // of SIMMPI_NAME; empty: not set
long knob_number(const char* name, long otherwise);

// Each call of MPI_NAME begins with this: counts it, and blocks if it is to block. True: it is to fail.
bool enter(const char* name);
// Does what MPI_NAME begins never end, or fail later?
bool never_ends(const char* name);
bool breaks(const char* name);

[[noreturn]] void mistake(const std::string& text);

}  // namespace simmpi
