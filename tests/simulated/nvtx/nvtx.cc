// The part of NVTX's library that the engine uses: it records ranges.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::string marked, shown;

void write_down(const std::string& line) {
  std::lock_guard lock(mutex);
  marked += line + '\n';
  // For other processes: each line is written to the file at once.
  if (const char* path = std::getenv("SIMNVTX_FILE")) {
    if (FILE* file = std::fopen(path, "a")) {
      std::fprintf(file, "%s\n", line.c_str());
      std::fclose(file);
    }
  }
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void* nvtxDomainCreateA(const char* name) {
  write_down(std::string("domain ") + name);
  return new std::string(name);
}

// `attributes`: 48 bytes, see nvToolsExt.h.
EXPORTED int nvtxDomainRangePushEx(void* domain, const void* attributes) {
  const auto* at = static_cast<const char*>(attributes);
  uint16_t head[2];
  int32_t type;
  const char* message;
  std::memcpy(head, at, sizeof head);
  std::memcpy(&type, at + 32, sizeof type);
  std::memcpy(&message, at + 40, sizeof message);
  if (head[0] != 3 || head[1] != 48 || type != 1) {
    write_down("unintelligible attributes");
    return -1;
  }
  write_down(*static_cast<std::string*>(domain) + " push " + message);
  return 0;
}

EXPORTED int nvtxDomainRangePop(void* domain) {
  write_down(*static_cast<std::string*>(domain) + " pop");
  return 0;
}

// Ranges recorded since the last call, one a line. The text stays valid until the next call.
EXPORTED const char* simnvtx_marked() {
  std::lock_guard lock(mutex);
  shown.swap(marked);
  marked.clear();
  return shown.c_str();
}
