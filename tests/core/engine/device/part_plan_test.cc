// Partition of tensors among the members of a host.
#include <doctest/doctest.h>

#include "engine/device/splitting.h"

using namespace hvd;

TEST_CASE("every element is covered once, in parts of equal length that begin where kernels like it") {
  for (size_t element : {1, 2, 4, 8}) {
    for (size_t members : {1, 2, 3, 8}) {
      for (size_t total : {1, 7, 255, 256, 257, 4096, 100000, 3000001}) {
        CAPTURE(element);
        CAPTURE(members);
        CAPTURE(total);
        const auto plan = plan_parts(total, members, element, 64 << 10);
        REQUIRE(!plan.empty());
        size_t reached = 0;
        for (const PartPlan& p : plan) {
          CHECK(p.first == reached);
          CHECK(p.part > 0);
          CHECK(p.part * element % 256 == 0);
          CHECK(p.part * element <= 64 << 10);
          CHECK(reached < total);
          reached += p.part * members;
        }
        CHECK(reached >= total);
        CHECK(reached - total < members * 256 / element + members);
      }
    }
  }
}

TEST_CASE("nothing is cut into nothing") { CHECK(plan_parts(0, 2, 4, 1024).empty()); }
