#include "agree/fuse.h"

#include <doctest/doctest.h>

#include "requests.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

std::vector<Names> fused(std::vector<Ready> ready, FuseOptions options) {
  std::vector<Names> all;
  for (const Response& r : fuse(std::move(ready), options)) all.push_back(r.names);
  return all;
}

}  // namespace

TEST_CASE("what fusion counts of an allgather is its result") {
  Negotiator n(2, labels(2));
  for (int r : {0, 1}) n.add_request(r, request("a", Kind::allgather, {r == 0 ? 0 : 7, 3}), 0);
  CHECK(n.take_ready().at(0).bytes == 7 * 3 * 4);
}

TEST_CASE("fusion") {
  const FuseOptions wide{100, false};
  CHECK(fused({ready_of("a", 40), ready_of("b", 60), ready_of("c", 1)}, wide) == std::vector<Names>{{"a", "b"}, {"c"}});
  CHECK(fused({ready_of("a", 40), ready_of("b", 61), ready_of("c", 1)}, wide) == std::vector<Names>{{"a", "c"}, {"b"}});
  CHECK(fused({ready_of("a", 1), ready_of("b", 1)}, {0, false}) == std::vector<Names>{{"a"}, {"b"}});
  // one group
  CHECK(fused({ready_of("a", 90, 1), ready_of("b", 90, 1)}, {0, false}) == std::vector<Names>{{"a", "b"}});
  CHECK(fused({ready_of("a", 1, 1), ready_of("b", 1, 2)}, wide) == std::vector<Names>{{"a", "b"}});
  CHECK(fused({ready_of("a", 1, 1), ready_of("b", 1, 2), ready_of("c", 1, 1), ready_of("d", 1)}, {100, true}) ==
        std::vector<Names>{{"a", "c"}, {"b"}, {"d"}});
  auto apart = [&](auto change) {
    std::vector<Ready> two{ready_of("a", 1), ready_of("b", 1)};
    change(two[1]);
    CHECK(fused(two, wide).size() == 2);
  };
  for (Kind kind : {Kind::allgather, Kind::reducescatter, Kind::broadcast, Kind::alltoall, Kind::barrier}) {
    std::vector<Ready> two{ready_of("a", 1), ready_of("b", 1)};
    for (Ready& r : two) r.response.kind = kind, r.response.sizes = {1, 2};
    const auto responses = fuse(two, wide);
    CHECK(responses.size() == (joinable(kind) ? 1 : 2));
    if (kind == Kind::allgather) CHECK(responses[0].sizes == std::vector<int64_t>{1, 2, 1, 2});
  }
  apart([](Ready& r) { r.response.set = 1; });
  apart([](Ready& r) { r.response.dtype = DType::int8; });
  apart([](Ready& r) { r.response.op = ReduceOp::max; });
  apart([](Ready& r) { r.response.wire = WireFormat::fp16; });
  apart([](Ready& r) { r.response.device = DeviceKind::cuda; });
  apart([](Ready& r) { r.response.across_hosts = true; });
  apart([](Ready& r) { r.response.partial = true; });
  apart([](Ready& r) { r.response.prescale = 2; });
  apart([](Ready& r) { r.response.postscale = 2; });
  apart([](Ready& r) { r.response.kind = Kind::broadcast; });
  apart([](Ready& r) { r.response.error = Status(Code::mismatch, "x"); });
  apart([](Ready& r) { r.fence = 1; });
}
