#pragma once
#include <cstdint>
#include <memory>

#include "engine/engine.h"

namespace hvd::python {

// Set the engine and ranks used by the table for other frontends; null: none.
void set_current(std::shared_ptr<Engine> engine, int rank, int size, int local_rank, int local_size);
// Set whether a frontend is in the job. Others get "not initialized" or "shut down". Initially none is.
void serve_frontend(uint8_t frontend, bool in);
// Drop the engine in a forked child.
void abandon_current();
// Return the address of the HvdFrontendApi.
uintptr_t frontend_api();

}  // namespace hvd::python
