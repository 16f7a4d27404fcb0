#include "nccl/library.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include "contains.h"
#include "ranks.h"

using namespace hvd;
using hvd::testing::contains;
using hvd::testing::exported;
using hvd::testing::kSimulated;
using hvd::testing::kSimulatedNccl;

namespace {

nccl::Found chosen(const std::string& path) { return nccl::find({.chosen = path, .candidates = {}}); }

}  // namespace

TEST_CASE("of candidates the first that can be used is taken, and else all reasons are given") {
  // by cases of other files; ctest runs each file in its own process
  if (::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD)) return;
  nccl::Found found = nccl::find({.chosen = {}, .candidates = {}});
  CHECK(found.why_not == "NCCL is not loaded in this process, and no path to it is known");
  found = nccl::find({.chosen = {}, .candidates = {"/nowhere/a/libnccl.so.2", "/nowhere/b/libnccl.so.2"}});
  CHECK(contains(found.why_not, "/nowhere/a/libnccl.so.2"));
  CHECK(contains(found.why_not, "; /nowhere/b/libnccl.so.2"));
  found = nccl::find({.chosen = {}, .candidates = {"/nowhere/a/libnccl.so.2", kSimulatedNccl}});
  REQUIRE(found.library);
  CHECK_FALSE(found.library->loaded_before);
  CHECK(found.library->path == kSimulatedNccl);
}

TEST_CASE("a library that is not there, or is something else, is named") {
  CHECK(contains(chosen("/nowhere/libnccl.so.2").why_not, "/nowhere/libnccl.so.2"));
  CHECK(chosen("/nowhere/libnccl.so.2").library == nullptr);
  CHECK(contains(chosen("libm.so.6").why_not, "is not NCCL"));
}

TEST_CASE("the library that the process has loaded goes before all candidates") {
  const nccl::Found first = chosen(kSimulatedNccl);
  REQUIRE(first.library);
  CHECK(first.library->path == kSimulatedNccl);
  CHECK(first.library->version == 22809);
  CHECK(first.library->aborts_in_groups());
  const nccl::Found again = nccl::find({.chosen = {}, .candidates = {"/nowhere/libnccl.so.2"}});
  REQUIRE(again.library);
  CHECK(again.library->path == kSimulatedNccl);
  CHECK(again.library->loaded_before);
}

TEST_CASE("too old a library is refused by its version, one with a symbol missing by that") {
  const std::string old = kSimulated + "/nccl-2.12/libnccl.so.2";
  nccl::Found found = chosen(old);
  CHECK(found.why_not == old + " is NCCL 2.12.12, but 2.18.0 or later is needed");
  exported<int(const char*, const char*)>(old, "simnccl_set")("version", "22809");
  found = chosen(old);
  CHECK(found.why_not == old + " (NCCL 2.28.9) has no ncclCommInitRankConfig");
  exported<int(const char*, const char*)>(old, "simnccl_set")("version", nullptr);
}

TEST_CASE("an error says the function, the number and what NCCL said last") {
  const nccl::Library& l = testing::simulated();
  const testing::Knob fail("fail", "GetUniqueId:1=2");
  nccl::UniqueId id;
  const Status s = nccl::make_id(l, &id);
  CHECK(contains(s.message(), "ncclGetUniqueId failed with NCCL error 2 (unhandled system error"));
  CHECK(contains(s.message(), "simulated failure of ncclGetUniqueId"));
  CHECK(nccl::status_of(l, nccl::kRemote, "x", nullptr).code() == Code::peer_lost);
  CHECK(nccl::status_of(l, nccl::kInProgress, "x", nullptr).ok());
}
