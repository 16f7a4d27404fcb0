// What can be set from outside (simnccl.h lists it), what is counted, and how mistakes are reported.
#pragma once
#include <string>

#include "nccl_abi.h"

namespace simnccl {

std::string knob(const std::string& name);  // empty: not set
long knob_number(const std::string& name, long otherwise);
int version();

// Counts a call of ncclNAME by `rank` (-1: none); not 0: it is to fail with this.
ncclResult_t count_call(const char* name, int rank);
// The same for kernels.
enum class Fate { runs, hangs, fails };
Fate count_kernel(int rank, ncclResult_t* async_error);

// Sets what ncclGetLastError says; returns the result.
ncclResult_t failed(ncclResult_t result, const std::string& text);
const char* last_error();

// To stderr, and a violation of the simulated driver: ends the process unless those are collected.
void mistake(const std::string& text);

void random_delay();

}  // namespace simnccl
