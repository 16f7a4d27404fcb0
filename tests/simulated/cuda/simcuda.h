// Exports of the simulated driver besides CUDA's own functions, for simulated kernels, the simulated NCCL and tests.
//
// Knobs are read from the environment (SIMCUDA_NAME) at the first call and changed with simcuda_set("name",
// value); knobs.h lists them.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Appends `work` to a stream (a CUstream as the calling thread sees it). The stream's thread first waits
// until `ready(argument)` is not 0 (polled with short sleeps; null: at once), then calls `work(argument)`. On
// a capturing stream nothing is run.
void simcuda_enqueue(void* stream, void (*work)(void*), void* argument, int (*ready)(void*));

// Host address of `bytes` of device or pinned memory: for simulated kernels and tests only. Reports a
// violation if any of it is not allocated or was freed; with SIMCUDA_COLLECT=1 the caller then gets scratch
// memory.
void* simcuda_at(uint64_t address, size_t bytes);

// The device of the calling thread's current context; -1 without one.
int simcuda_current_device(void);

// The 16 bytes of a device's UUID as 32 hexadecimal digits, equal in all processes that see this device; null
// if there is none.
const char* simcuda_uuid(int device);

// Reports an error: prints "simcuda: TEXT", then aborts; collected with SIMCUDA_COLLECT=1.
void simcuda_violation(const char* text);

// Violations collected since the last call, one a line; clears them. The text stays valid.
const char* simcuda_violations(void);

// Sets a knob; returns 0, or -1 if there is none of that name.
int simcuda_set(const char* name, int64_t value);

// How often a function of the driver was called, by its full name ("cuMemAlloc_v2").
uint64_t simcuda_calls(const char* name);
}
