#include "nccl/library.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

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
  CHECK_FALSE(first.library->rccl);
  CHECK(first.library->aborts_in_groups());
  const nccl::Found again = nccl::find({.chosen = {}, .candidates = {"/nowhere/libnccl.so.2"}});
  REQUIRE(again.library);
  CHECK(again.library->path == kSimulatedNccl);
  CHECK(again.library->loaded_before);
}

TEST_CASE("of candidates the first that can be used is taken, and else all reasons are given") {
  // librccl.so.1 is not loaded here. What is NVIDIA's is for NVIDIA's GPUs, whatever comes first.
  const std::string folder = std::filesystem::temp_directory_path() / ("hvd_rccl_" + std::to_string(::getpid()));
  const std::string rccl = folder + "/librccl.so";
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(kSimulatedNccl, rccl);
  nccl::Found found = nccl::find({.chosen = {}, .candidates = {kSimulatedNccl, "/nowhere/librccl.so.1", rccl}, .rccl = true});
  std::filesystem::remove_all(folder);
  REQUIRE(found.library);
  CHECK_FALSE(found.library->loaded_before);
  CHECK(found.library->rccl);
  CHECK(found.library->path == rccl);
  found = nccl::find({.chosen = {}, .candidates = {"/nowhere/a/librccl.so", kSimulatedNccl, "/nowhere/b/librccl.so"}, .rccl = true});
  CHECK(contains(found.why_not, "/nowhere/a/librccl.so"));
  CHECK(contains(found.why_not, "/nowhere/b/librccl.so"));
  found = nccl::find({.chosen = {}, .candidates = {kSimulatedNccl}, .rccl = true});
  CHECK(contains(found.why_not, "not loaded RCCL, and no place to look for it is known"));
}

TEST_CASE("too old a library is refused by its version, one with a symbol missing by that") {
  const std::string old = kSimulated + "/nccl-2.12/libnccl.so.2";
  nccl::Found found = chosen(old);
  CHECK(found.why_not == old + " is NCCL 2.12.12; needed is 2.18.0 or later");
  exported<int(const char*, const char*)>(old, "simnccl_set")("version", "22809");
  found = chosen(old);
  CHECK(found.why_not == old + " (NCCL 2.28.9) has no ncclCommInitRankConfig");
  exported<int(const char*, const char*)>(old, "simnccl_set")("version", nullptr);
}

TEST_CASE("symbols of later versions are null where the library has none") {
  const nccl::Found found = chosen(kSimulated + "/nccl-2.18/libnccl.so.2");
  REQUIRE(found.library);
  CHECK(found.library->version == 21805);
  CHECK_FALSE(found.library->aborts_in_groups());
  CHECK((found.library->comm_register == nullptr));
  CHECK((testing::simulated().comm_register != nullptr));
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
