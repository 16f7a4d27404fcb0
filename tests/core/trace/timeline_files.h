// Files of timelines in tests: where they lie, what is in them, and disks that are full.
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "engine/wiring.h"
#include "json_reader.h"

namespace hvd::testing {

// A folder for one test.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/hvd-timeline-XXXXXX";
    require(::mkdtemp(name) != nullptr, "mkdtemp");
    path_ = name;
  }
  ~Folder() {
    for (const std::string& name : made_) ::unlink((path_ + "/" + name).c_str());
    ::rmdir(path_.c_str());
  }
  std::string file(const std::string& name) {
    made_.insert(name);
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::set<std::string> made_;
};

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline std::optional<Json> parsed(const std::string& path) { return JsonReader::read(contents(path)); }

// Files may grow up to `bytes` while it lives.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~SmallFiles() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace hvd::testing
