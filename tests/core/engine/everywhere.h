// A program in worlds of several sizes and all layouts.
#pragma once
#include <doctest/doctest.h>

#include "harness_engine.h"

namespace hvd::testing {

// `after`: checks to run when all ranks are done.
inline void everywhere(const std::function<void(Program&)>& body, Settings settings = crowded(),
                       const std::vector<int>& sizes = {1, 2, 3, 4, 5, 8},
                       const std::function<void(EngineWorld&)>& after = [](EngineWorld&) {}) {
  for (Layout layout : kLayouts) {
    for (int size : sizes) {
      CAPTURE(name_of(layout));
      CAPTURE(size);
      EngineWorld world(size, {layout, settings});
      CHECK(run(world, body) == "");
      after(world);
    }
  }
}

}  // namespace hvd::testing
