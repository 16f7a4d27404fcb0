#pragma once
#include <memory>

#include "engine/operation.h"
#include "transport/arena.h"

namespace hvd::python {

struct Buffer {
  std::shared_ptr<void> owner;
  std::byte* data;
  size_t bytes;

  explicit Buffer(const std::shared_ptr<Output>& output) : owner(output), data(output->data()), bytes(output->bytes()) {}
  explicit Buffer(const std::shared_ptr<Arena::Block>& block) : owner(block), data(block->data()), bytes(block->bytes()) {}
};

}  // namespace hvd::python
