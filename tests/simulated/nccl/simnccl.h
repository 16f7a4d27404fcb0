// Exports of the simulated NCCL besides NCCL's functions, for tests. Knobs are read from the environment at
// the first use and changed with simnccl_set("name", "value"), which restarts the counting of `fail` and
// `hang`; null: the default.
#pragma once
#include <cstdint>

extern "C" {
int simnccl_set(const char* name, const char* value);  // -1: there is none of that name
int simnccl_living();  // communicators of this process that were neither destroyed nor aborted
int simnccl_kernels();  // number of kernels enqueued by this process
uint64_t simnccl_calls(const char* name);  // how often ncclNAME was called
}
