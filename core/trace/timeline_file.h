// A file that holds a JSON array and grows while others read it: whenever it is read, it is whole. After the closing bracket there is
// room, blanks that JSON ignores; new elements go over the bracket and into the room with one write, so nothing that fails midway
// (a disk that is full) can leave half of them behind. Making more room is what may fail, and blanks do no harm.
//
// What is left: a process that is killed, or a reader that comes by, in the microseconds of that write sees a part of it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hvd {

class TimelineFile {
 public:
  // Empties the file or makes it. Not ok, with a sentence that says why and errno (as error()): it cannot be written, is no regular file,
  // or another process has it open here as well.
  static Status open(const std::string& path, std::unique_ptr<TimelineFile>* out, int* error);
  ~TimelineFile();  // close()
  TimelineFile(const TimelineFile&) = delete;

  // `elements`: JSON values, each followed by ",\n". After an error nothing more may be added; the array is as it was.
  Status append(std::string_view elements);
  // Gives back the room.
  void close();

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return end_; }  // without what closes the array, and the room

 private:
  TimelineFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status make_room(uint64_t least);
  Status failed(const char* what, int error) const;

  const std::string path_;
  int fd_;
  uint64_t end_ = 0;   // of what has been written before the end of the array
  uint64_t size_ = 0;  // of the file
  bool any_ = false;
};

}  // namespace hvd
