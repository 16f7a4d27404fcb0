// Jobs over the simulated MPI: ranks are processes of this program, each running one of its skipped test
// cases.
#pragma once
#include <doctest/doctest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../../simulated/mpi/simmpi.h"
#include "mpi/session.h"

extern char** environ;

namespace hvd::testing {

inline const std::string kOpenMpi = HVD_SIMULATED_DIR "/libmpi.so.40", kMpich = HVD_SIMULATED_DIR "/libmpi.so.12",
                         kStandard = HVD_SIMULATED_DIR "/libmpi_abi.so.1";

using Variables = std::map<std::string, std::string>;

inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}
inline int number_of(const char* name) { return std::atoi(variable(name).c_str()); }

inline pid_t start(const std::string& test_case, const Variables& variables) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : variables) texts.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& text : texts) environment.push_back(text.data());
  for (char** v = environ; *v; ++v) environment.push_back(*v);
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = "--test-case=" + test_case, skipped = "--no-skip", quiet = "--minimal";
  char* arguments[] = {program.data(), filter.data(), skipped.data(), quiet.data(), nullptr};
  pid_t pid = -1;
  REQUIRE(::posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environment.data()) == 0);
  return pid;
}

// The status as of waitpid(); after half a minute the process is killed.
inline int ended(pid_t pid) {
  int status = 0;
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (::waitpid(pid, &status, WNOHANG) != pid) {
    if (std::chrono::steady_clock::now() > last) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return status;
}

// Runs the test case in a process for each rank, with these variables; returns their statuses. Each must call
// arrive(), because a misspelt test case would succeed.
inline std::vector<int> run(int size, const std::string& test_case, Variables variables) {
  const int world = simmpi::new_world();
  REQUIRE(world >= 0);
  int arrivals[2];
  REQUIRE(::pipe(arrivals) == 0);
  variables["HVD_TEST_ARRIVALS"] = std::to_string(arrivals[1]);
  variables["SIMMPI_WORLD"] = std::to_string(world);
  variables["SIMMPI_SIZE"] = std::to_string(size);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    variables["SIMMPI_RANK"] = std::to_string(rank);
    pids.push_back(start(test_case, variables));
  }
  ::close(world);
  ::close(arrivals[1]);
  std::vector<int> statuses;
  for (const pid_t pid : pids) statuses.push_back(ended(pid));
  std::vector<char> arrived(static_cast<size_t>(size));
  CHECK(::read(arrivals[0], arrived.data(), arrived.size()) == size);
  ::close(arrivals[0]);
  return statuses;
}

// Called first in such a process; returns its rank. The process ends if the test is killed.
inline int arrive() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  REQUIRE(::write(number_of("HVD_TEST_ARRIVALS"), "x", 1) == 1);
  return number_of("SIMMPI_RANK");
}

// Called in such a process: starts MPI through the library of HVD_TEST_LIBRARY.
inline Status open(mpi::Session** out, double patience = 20) {
  return mpi::Session::open({variable("HVD_TEST_LIBRARY"), "", variable("HVD_TEST_ONE_THREAD") == "1", patience}, out);
}

}  // namespace hvd::testing
