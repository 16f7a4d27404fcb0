// The timeline's file.
#include "trace/timeline_file.h"

#include <doctest/doctest.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "files.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

TEST_CASE("a file is whole whenever somebody reads it") {
  Folder folder;
  const std::string path = folder / "t.json";
  std::unique_ptr<TimelineFile> file;
  int error = 0;
  REQUIRE(TimelineFile::open(path, &file, &error).ok());
  CHECK(parsed(path));
  std::atomic<bool> done{false};
  size_t reads = 0, torn = 0, last = 0;
  std::thread reader([&] {
    while (!done) {
      auto json = parsed(path);
      // During the microseconds of a write a partial file may be read, but not twice in a row.
      if (!json && ++torn) json = parsed(path);
      ++reads;
      if (!json || json->items.size() < last) {
        done = true;
        last = SIZE_MAX;
      } else {
        last = json->items.size();
      }
    }
  });
  for (int i = 0; i < 400 && !done; ++i) {
    std::string text;
    for (int j = 0; j <= i % 50; ++j) text += "{\"event\":\"" + std::string(static_cast<size_t>(j), 'x') + "\"},\n";
    CHECK(file->append(text).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  done = true;
  reader.join();
  CHECK(last != SIZE_MAX);
  CHECK(reads > 3);
  CHECK(torn <= reads / 4);
  file->close();
  CHECK(!file->append("1,\n").ok());
  const std::string all = contents(path);
  CHECK(all.substr(all.size() - 4) == "}\n]\n");
  CHECK(parsed(path)->items.size() == 400 / 50 * (50 * 51 / 2));
}

TEST_CASE("a disk that is full leaves a file that is whole") {
  Folder folder;
  const std::string path = folder / "t.json";
  std::unique_ptr<TimelineFile> file;
  int error = 0;
  REQUIRE(TimelineFile::open(path, &file, &error).ok());
  size_t written = 0;
  Status s;
  {
    SmallFiles limit(300'000);
    const std::string text = "{\"event\":\"" + std::string(1000, 'y') + "\"},\n";
    while (s.ok() && written < 1000) {
      s = file->append(text);
      written += s.ok();
      REQUIRE(parsed(path));
    }
  }
  CHECK(!s.ok());
  CHECK(s.message().find(path + ": cannot be written any more: File too large") == 0);
  CHECK(written > 100);
  CHECK(parsed(path)->items.size() == written);
  file.reset();
  CHECK(parsed(path)->items.size() == written);
}

TEST_CASE("files that cannot be had are named with the reason") {
  Folder folder;
  std::unique_ptr<TimelineFile> file, other;
  int error = 0;
  CHECK(TimelineFile::open(folder / "none/t.json", &file, &error).message().find("No such file or directory") != std::string::npos);
  CHECK(error == ENOENT);
  CHECK(!TimelineFile::open(folder / "", &file, &error).ok());
  CHECK(error == EISDIR);
  CHECK(TimelineFile::open("/dev/full", &file, &error).message() == "/dev/full: is not a regular file");
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(!TimelineFile::open(pipe, &file, &error).ok());
  const std::string precious = folder / "precious", link = folder / "link", second = folder / "second";
  std::ofstream(precious) << "mine";
  REQUIRE(::symlink(precious.c_str(), link.c_str()) == 0);
  CHECK(TimelineFile::open(link, &file, &error).message().find("is a symbolic link") != std::string::npos);
  CHECK(error == ELOOP);
  REQUIRE(::link(precious.c_str(), second.c_str()) == 0);
  CHECK(TimelineFile::open(second, &file, &error).message().find("is also the name of another file") != std::string::npos);
  CHECK(error == EMLINK);
  CHECK(contents(precious) == "mine");
  const std::string path = folder / "t.json";
  std::ofstream(path) << "what was here before";
  REQUIRE(TimelineFile::open(path, &file, &error).ok());
  CHECK(parsed(path));
  REQUIRE(file->append("1,\n").ok());
  CHECK(TimelineFile::open(path, &other, &error).message().find("is being written by another process") != std::string::npos);
  CHECK(error == EBUSY);
  CHECK(parsed(path)->items.size() == 1);  // unchanged
  file.reset();
  CHECK(TimelineFile::open(path, &other, &error).ok());
}

}  // namespace
