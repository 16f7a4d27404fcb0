// Dumps of the flight recorder: format, triggers, errors, and the signal that requests one.
#include "trace/dump.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "engine/harness_engine.h"
#include "files.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

namespace fs = std::filesystem;

TEST_CASE("files are made with their folders, for this user alone, and replaced") {
  Folder folder;
  REQUIRE(write_into(folder / "a/b", FolderKind::own, "x", "one").ok());
  REQUIRE(write_into(folder / "a/b", FolderKind::own, "x", "two").ok());
  CHECK(contents(folder / "a/b/x") == "two");
  struct stat found{};
  ::stat((folder / "a/b/x").c_str(), &found);
  CHECK((found.st_mode & 0777) == 0600);
  CHECK(std::distance(fs::directory_iterator(folder / "a/b"), {}) == 1);
  const Status bad = write_into(folder / "a/b/x/c", FolderKind::own, "y", "three");  // x is a file
  CHECK(!bad.ok());
  CHECK(bad.message().find(folder / "a/b/x/c") != std::string::npos);
}

TEST_CASE("a folder of reports that others can write to, or that a link stands for, is not used") {
  Folder folder;
  fs::create_directories(folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", folder / "linked");
  fs::create_directories(folder / "open");
  ::chmod((folder / "open").c_str(), 0777);
  std::ofstream(folder / "plain") << "mine";
  for (const char* name : {"linked", "open", "plain"}) {
    std::string first, second;
    REQUIRE(write_into(folder / name, FolderKind::own, "x", "one", &first).ok());
    REQUIRE(write_into(folder / name, FolderKind::own, "y", "two", &second).ok());
    CHECK(contents(first) == "one");
    const std::string fresh = fs::path(first).parent_path().string();
    CHECK(fresh.starts_with(folder / (std::string(name) + "-")));
    CHECK(fs::path(second).parent_path() == fresh);
    struct stat found{};
    ::stat(fresh.c_str(), &found);
    CHECK((found.st_mode & 0777) == 0700);
  }
  CHECK(fs::is_empty(folder / "elsewhere"));
  CHECK(fs::is_empty(folder / "open"));
  CHECK(contents(folder / "plain") == "mine");
  std::string path;
  REQUIRE(write_into(folder / "linked", FolderKind::given, "x", "one", &path).ok());  // chosen by the user
  CHECK(contents(folder / "elsewhere/x") == "one");
}

TEST_CASE("ranks write what they have done when the job ends by an error, with numbers that agree, and not when they leave") {
  Folder folder;
  const auto job = [&](const std::string& where, bool broken) {
    EngineWorld world(2);
    std::vector<std::shared_ptr<Dumper>> dumpers;
    for (int r = 0; r < 2; ++r) {
      auto recorder = std::make_shared<FlightRecorder>(1000);
      world.engine(r).observers().add(recorder);
      dumpers.push_back(std::make_shared<Dumper>(recorder, r, 2, "rank " + std::to_string(r), folder / where));
      world.engine(r).observers().add(dumpers.back());
    }
    CHECK(run(world, [&](Program& p) {
      p.barrier();
      for (int step = 0; step < 3; ++step) p.equal(p.sum("x", 1, 5), 2, "x");
    }) == "");
    if (!broken) {
      for (int r = 0; r < 2; ++r) world.engine(r).shutdown("");
      CHECK(!fs::exists(folder / where));
      std::string path;
      CHECK(dumpers[1]->dump(folder / "asked", "why \"not\"", &path).ok());
      CHECK(path == folder / "asked/recorder.rank1.jsonl");
      return;
    }
    dumpers[0]->ended(Status(Code::peer_lost, "rank 1 was lost", 1));
    dumpers[1]->ended(Status(Code::timeout, "too late"));
  };
  job("left", false);
  const std::string dumped = contents(folder / "asked/recorder.rank1.jsonl");
  CHECK(dumped.find("{\"horovod\":\"recorder\",\"version\":1,\"rank\":1,\"size\":2,\"label\":\"rank 1\",\"pid\":") == 0);
  CHECK(dumped.find("\"why\":\"why \\\"not\\\"\"") != std::string::npos);
  job("broken", true);
  for (int r = 0; r < 2; ++r) {
    const std::string text = contents(folder / ("broken/recorder.rank" + std::to_string(r) + ".jsonl"));
    CAPTURE(text);
    CHECK(text.find(r == 0 ? "\"why\":\"rank 1 was lost\"" : "\"why\":\"too late\"") != std::string::npos);
    CHECK(text.find("\"name\":\"x\"") != std::string::npos);
    for (int position = 0; position < 4; ++position) {  // the barrier is the first
      CHECK(text.find("\"position\":" + std::to_string(position) + ",") != std::string::npos);
    }
  }
}

volatile sig_atomic_t own = 0;
void on_own(int) { own = own + 1; }

TEST_CASE("a signal calls a function in a thread, unless the program has taken it") {
  std::atomic<int> calls{0};
  const auto start = [&] { return SignalWatch::start(SIGUSR2, [&] { ++calls; }); };
  {
    const auto watch = start();
    REQUIRE(watch);
    CHECK(!start());
    ::raise(SIGUSR2);
    const Deadline deadline = Deadline::after(20);
    while (calls == 0 && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(calls == 1);
  }
  struct sigaction now{};
  ::sigaction(SIGUSR2, nullptr, &now);
  CHECK((now.sa_handler == SIG_DFL));
  {
    const auto watch = start();  // again
    REQUIRE(watch);
    ::signal(SIGUSR2, &on_own);
  }
  ::raise(SIGUSR2);  // a handler that the program has set meanwhile is kept
  CHECK(own == 1);
  CHECK(!start());
  ::signal(SIGUSR2, SIG_DFL);
  CHECK(calls == 1);
}

}  // namespace
