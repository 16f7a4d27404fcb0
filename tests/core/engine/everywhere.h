// A program in worlds of all sizes and layouts.
#pragma once
#include <doctest/doctest.h>

#include "harness_engine.h"

namespace hvd::testing {

inline constexpr int kSizes[] = {1, 2, 3, 4, 5, 8};

inline void everywhere(const std::function<void(Program&)>& body, Settings settings = crowded()) {
  for (Layout layout : kLayouts) {
    for (int size : kSizes) {
      CAPTURE(name_of(layout));
      CAPTURE(size);
      EngineWorld world(size, {layout, settings});
      CHECK(run(world, body) == "");
    }
  }
}

}  // namespace hvd::testing
