#include "ptx.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_abi.h"

namespace simcuda {
namespace {

// Text up to its zero byte; false for anything else. Without that byte the driver reads beyond the end, where
// there is hardly text.
bool is_text(const char* image) {
  for (const char* c = image; *c; ++c)
    if (!std::isprint(static_cast<unsigned char>(*c)) && !std::isspace(static_cast<unsigned char>(*c))) return false;
  return *image != 0;
}

// The number after a directive that starts a line, as in ".version 8.1" or ".target sm_70"; -1 if there is
// none.
int number_after(const char* text, const char* directive, const char* format) {
  for (const char* at = std::strstr(text, directive); at; at = std::strstr(at + 1, directive)) {
    int major = 0, minor = 0;
    if (at != text && at[-1] != '\n') continue;
    const int read = std::sscanf(at + std::strlen(directive), format, &major, &minor);
    if (read >= 1) return read == 2 ? 10 * major + minor : major;
  }
  return -1;
}

// The size of a first parameter of bytes, as in "(.param .align 8 .b8 NAME_param_0[96]"; 0 for another type.
size_t bytes_of_parameter(const std::string& text, size_t open) {
  const std::string list = text.substr(open, text.find(')', open) - open), first = list.substr(0, list.find(','));
  const size_t bracket = first.find('[');
  return first.find(".b8") < bracket && bracket != std::string::npos ? std::strtoul(first.c_str() + bracket + 1, nullptr, 10) : 0;
}

std::map<std::string, size_t> find_entries(const std::string& text) {
  static const std::string directive = ".entry";
  std::map<std::string, size_t> found;
  for (size_t at = text.find(directive); at != std::string::npos; at = text.find(directive, at + 1)) {
    const size_t name = text.find_first_not_of(" \t\n", at + directive.size()), open = text.find('(', at);
    if (name == std::string::npos || open == std::string::npos) break;
    found[text.substr(name, text.find_first_of(" \t\n(", name) - name)] = bytes_of_parameter(text, open);
  }
  return found;
}

Ptx refuse(int error, const std::string& why) { return {error, "ptxas (simulated) fatal: " + why, {}}; }

std::string dotted(int number) { return std::to_string(number / 10) + "." + std::to_string(number % 10); }

}  // namespace

int newest_ptx(int driver_version) {
  const int major = driver_version / 1000, minor = driver_version % 1000 / 10;
  if (major <= 11) return 70 + minor;
  if (major == 12) return 80 + (minor <= 5 ? minor : minor - 1);
  return 90 + minor;
}

Ptx read_ptx(const char* image, int version, int capability) {
  if (!is_text(image)) return refuse(kInvalidPtx, "the image is no text that ends with a zero byte");
  const int ptx = number_after(image, ".version", " %d.%d"), target = number_after(image, ".target", " sm_%d");
  if (ptx < 0) return refuse(kInvalidPtx, "missing .version directive");
  if (target < 0) return refuse(kInvalidPtx, "missing .target directive");
  if (ptx > newest_ptx(version))
    return refuse(kUnsupportedPtxVersion, "Unsupported .version " + dotted(ptx) + "; current version is " + dotted(newest_ptx(version)));
  if (target > capability)
    return refuse(kNoBinaryForGpu, "target sm_" + std::to_string(target) + " is above the device's sm_" + std::to_string(capability));
  return {0, "", find_entries(image)};
}

}  // namespace simcuda
