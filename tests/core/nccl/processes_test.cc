// Ranks that are processes: this program again, as one rank each.
#include <doctest/doctest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "ranks.h"

using namespace hvd;
using hvd::testing::Rank;

extern char** environ;

namespace {

std::string hex(const nccl::UniqueId& id) {
  std::string text;
  char digits[3];
  for (const char c : id.bytes) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

nccl::UniqueId from_hex(const std::string& text) {
  nccl::UniqueId id;
  for (size_t i = 0; i < sizeof id.bytes; ++i) id.bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

pid_t start(int rank, int size, const std::string& id, const std::string& lost) {
  std::vector<std::string> variables = {"HVD_TEST_RANK=" + std::to_string(rank), "HVD_TEST_SIZE=" + std::to_string(size),
                                        "HVD_TEST_ID=" + id, "HVD_TEST_LOST=" + lost};
  std::vector<char*> environment;
  for (std::string& v : variables) environment.push_back(v.data());
  for (char** v = environ; *v; ++v) environment.push_back(*v);
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = "--test-case=one rank that is a process", skipped = "--no-skip";
  char* arguments[] = {program.data(), filter.data(), skipped.data(), nullptr};
  pid_t pid = -1;
  REQUIRE(::posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environment.data()) == 0);
  return pid;
}

// The status as of waitpid(); after a minute the process is killed.
int ended(pid_t pid) {
  int status = 0;
  if (!hvd::testing::wait_until([&] { return ::waitpid(pid, &status, WNOHANG) == pid; })) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
  }
  return status;
}

void check_sum(Rank& r) {
  constexpr size_t kCount = 100000;
  std::vector<float> mine(kCount);
  std::iota(mine.begin(), mine.end(), static_cast<float>(r.rank));
  float* data = r.device.upload(mine);
  const nccl::Piece pieces[] = {{data, data, kCount}};
  REQUIRE(nccl::allreduce(*r.comm, r.device.stream, nccl::decide({.size = r.size}), pieces).ok());
  REQUIRE(r.device.finish());
  const std::vector<float> got = r.device.download(data, kCount);
  const int ranks = r.size * (r.size - 1) / 2;
  for (const size_t i : {size_t{0}, size_t{1}, kCount - 1}) CHECK(got[i] == static_cast<float>(r.size * static_cast<int>(i) + ranks));
}

void check_alltoall(Rank& r) {
  const std::vector<size_t> bytes(static_cast<size_t>(r.size), 1000);
  const std::vector<uint8_t> mine(1000 * static_cast<size_t>(r.size), static_cast<uint8_t>(r.rank));
  auto* out = static_cast<uint8_t*>(r.device.allocate(mine.size()));
  REQUIRE(nccl::alltoall(*r.comm, r.device.stream, r.device.upload(mine), bytes, out, bytes).ok());
  REQUIRE(r.device.finish());
  const std::vector<uint8_t> got = r.device.download(out, mine.size());
  for (size_t i = 0; i < got.size(); i += 500) CHECK(got[i] == static_cast<uint8_t>(i / 1000));
}

}  // namespace

TEST_CASE("one rank that is a process" * doctest::skip()) {
  const char* text = std::getenv("HVD_TEST_RANK");
  REQUIRE(text);
  Rank r(std::atoi(text), std::atoi(std::getenv("HVD_TEST_SIZE")));
  r.comm = r.make(from_hex(std::getenv("HVD_TEST_ID")), true);
  REQUIRE(Rank::made(r.comm));
  check_sum(r);
  check_alltoall(r);
  const std::string lost = std::getenv("HVD_TEST_LOST");
  if (lost.empty()) {
    CHECK(r.destroy());
  } else if (std::to_string(r.rank) == lost) {
    ::kill(::getpid(), SIGKILL);
  } else {
    float* data = r.device.upload(std::vector<float>{1});
    const nccl::Piece pieces[] = {{data, data, 1}};
    REQUIRE(nccl::allreduce(*r.comm, r.device.stream, nccl::decide({.size = r.size}), pieces).ok());
    CHECK_FALSE(r.device.finish(0.2));
    CHECK(r.comm->async_error().ok());  // a dead peer on the same host is not noticed
    const auto ending = nccl::abort(std::span(&r.comm, 1), Status(Code::peer_lost, "lost"), 30);
    ending->wait();
    CHECK(ending->outcome().ok());
    CHECK(r.device.finish());
  }
  CHECK(std::string(simcuda_violations()) == "");
}

TEST_CASE("ranks that are processes reduce and exchange") {
  const std::string id = hex(testing::new_id());
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 3; ++rank) pids.push_back(start(rank, 3, id, ""));
  for (const pid_t pid : pids) CHECK(ended(pid) == 0);
}

TEST_CASE("the survivors of a killed process abort") {
  const std::string id = hex(testing::new_id());
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 3; ++rank) pids.push_back(start(rank, 3, id, "1"));
  for (int rank = 0; rank < 3; ++rank) {
    const int status = ended(pids[static_cast<size_t>(rank)]);
    CHECK((rank == 1 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0));
  }
}
