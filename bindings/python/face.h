#pragma once
#include <cstdint>
#include <memory>

#include "engine/engine.h"

namespace hvd::python {

// The engine and places that the table for other faces answers for; null: none.
void set_current(std::shared_ptr<Engine> engine, int rank, int size, int local_rank, int local_size);
// Is a face in the job? Others are told that it is not initialised, or was shut down. At first none is.
void serve_face(uint8_t face, bool in);
// In a forked child.
void abandon_current();
// Address of the HvdFaceApi.
uintptr_t face_api();

}  // namespace hvd::python
