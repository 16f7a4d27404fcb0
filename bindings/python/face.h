#pragma once
#include <cstdint>
#include <memory>

#include "engine/engine.h"

namespace hvd::python {

// The engine and places that the table for other faces answers for; null: none.
void set_current(std::shared_ptr<Engine> engine, int rank, int size, int local_rank, int local_size);
// In a forked child.
void abandon_current();
// Address of the HvdFaceApi.
uintptr_t face_api();

}  // namespace hvd::python
