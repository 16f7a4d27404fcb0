// Files for tests of tracing: folders, contents, and full disks.
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "engine/wiring.h"
#include "json_reader.h"

namespace hvd::testing {

// A folder for one test.
class Folder {
 public:
  Folder() {
    std::string result = (std::filesystem::temp_directory_path() / "hvd-trace-XXXXXX").string();
    require(::mkdtemp(result.data()) != nullptr, "mkdtemp");
    path_ = result;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::optional<Json> parsed(const std::string& path) { return JsonReader::read(contents(path)); }

// Limits file sizes to `bytes` during its lifetime.
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
