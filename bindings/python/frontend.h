#pragma once
#include <cstdint>
#include <memory>

#include "engine/engine.h"

namespace hvd::python {

// Set the engine and the ranks that the function table uses. A null engine means that none is running.
void set_current(std::shared_ptr<Engine> engine, int rank, int size, int local_rank, int local_size);
// Set whether a frontend has joined the job. Until it has, its calls of the function table fail with "not initialized";
// after it has left, with "shut down". Initially, no frontend has joined.
void serve_frontend(uint8_t frontend, bool in);
// Drop the engine in a forked child without destroying it.
void abandon_current();
// Return the address of the function table (HvdFrontendApi).
uintptr_t frontend_api();

}  // namespace hvd::python
