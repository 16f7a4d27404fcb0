// Options (simnccl.h lists them), counters, and error reports.
#pragma once
#include <string>

#include "nccl_abi.h"

namespace simnccl {

std::string knob(const std::string& name);  // empty: not set
long knob_number(const std::string& name, long otherwise);
int version();

// Counts a call of ncclNAME by `rank` (-1: none); not 0: the call must fail with this result.
ncclResult_t count_call(const char* name, int rank);
// The same for kernels.
enum class Fate { runs, hangs, fails };
Fate count_kernel(int rank, ncclResult_t* async_error);

// Sets the text of ncclGetLastError; returns the result.
ncclResult_t failed(ncclResult_t result, const std::string& text);
const char* last_error();

// Writes to stderr and reports a violation of the simulated driver, which ends the process unless violations
// are collected.
void mistake(const std::string& text);

void random_delay();

}  // namespace simnccl
