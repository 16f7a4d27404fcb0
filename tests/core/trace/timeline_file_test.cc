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

}  // namespace
