// What the simulated driver exports besides CUDA's own functions, for simulated kernels, for the simulated NCCL and for tests.
//
// Knobs are read from the environment (SIMCUDA_NAME) at the first call and changed with simcuda_set("name", value): knobs.h has the list.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Appends `work` to a stream (a CUstream as the calling thread sees it). The stream's thread first waits until `ready(argument)` is not
// 0 (asked again and again with short sleeps; null: at once), then calls `work(argument)`. On a capturing stream nothing is run.
void simcuda_enqueue(void* stream, void (*work)(void*), void* argument, int (*ready)(void*));

// Where the host may touch `bytes` of device or pinned memory: for simulated kernels and tests only. Reports when any of it is not
// allocated or was freed; with SIMCUDA_COLLECT=1 the caller then gets scratch memory.
void* simcuda_at(uint64_t address, size_t bytes);

// The device of the calling thread's current context; -1 without one.
int simcuda_current_device(void);

// The 16 bytes of a device's UUID as 32 hexadecimal digits, equal in all processes that see this device; null when there is none.
const char* simcuda_uuid(int device);

// Reports a mistake: printed as "simcuda: TEXT", then abort(); collected with SIMCUDA_COLLECT=1.
void simcuda_violation(const char* text);

// What was collected since the last call, a line each; forgets it. The text stays valid.
const char* simcuda_violations(void);

// Sets a knob; 0, or -1 when there is none of that name.
int simcuda_set(const char* name, int64_t value);

// How often a function of the driver was called, by its full name ("cuMemAlloc_v2").
uint64_t simcuda_calls(const char* name);
}
