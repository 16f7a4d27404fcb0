// Program that runs a fuzz target on the given files, for compilers without libFuzzer. Usage: replay
// FILE-OR-DIRECTORY...
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "fuzz.h"

int main(int count, char** arguments) {
  namespace fs = std::filesystem;
  int runs = 0;
  auto run = [&runs](const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file.good() && !file.eof()) return false;
    std::printf("%s\n", path.c_str());
    // Flush now, because a failing file must be the last one printed.
    std::fflush(stdout);
    // Copy to memory of exactly this size, so that the address sanitizer reports reads beyond the end.
    const auto exact = std::make_unique<uint8_t[]>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), exact.get());
    LLVMFuzzerTestOneInput(exact.get(), bytes.size());
    ++runs;
    return true;
  };
  for (int i = 1; i < count; ++i) {
    if (!fs::is_directory(arguments[i])) {
      if (!run(arguments[i])) return 1;
      continue;
    }
    for (const auto& entry : fs::directory_iterator(arguments[i])) {
      if (!run(entry.path())) return 1;
    }
  }
  std::printf("%d inputs\n", runs);
  // Fail on an empty corpus, because it tests nothing.
  return runs > 0 ? 0 : 1;
}
