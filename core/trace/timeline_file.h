// File with a growing JSON array that is valid at all times, so that other programs can read it. The closing bracket is followed by
// reserved space: blanks, which JSON ignores. A single write puts new elements in the place of the bracket and into the reserved space. A
// full disk can thus only keep the reserved space from growing, and never leaves partial elements.
//
// Readers can see a partial write only if the process is killed, or the file is read, within the microseconds that a
// write takes.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hvd {

class TimelineFile {
 public:
  // Create or truncate the file. On failure, set `error` to errno and return an error whose message is a full sentence. Reasons include
  // that the file is not regular, or that another process on this host has it open.
  static Status open(const std::string& path, std::unique_ptr<TimelineFile>* out, int* error);
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;

  // Append JSON values, each followed by ",\n". After an error, the array is unchanged, and the caller must append nothing more.
  Status append(std::string_view elements);
  // Remove the unused reserved space and close the file.
  void close();

  const std::string& path() const { return path_; }
  // Return the size of the file in bytes, without the closing bracket of the array and the reserved space.
  uint64_t bytes() const { return end_; }

 private:
  TimelineFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status make_room(uint64_t least);
  Status failed(const char* what, int error) const;

  const std::string path_;
  int fd_;
  // Offset in the file of the closing bracket of the array.
  uint64_t end_ = 0;
  // Size of the file, including the reserved space.
  uint64_t size_ = 0;
  bool any_ = false;
};

}  // namespace hvd
