// State of a process as seen by the kernel: whether it is running, sleeping, stopped or being debugged, what its
// threads wait for, and how much of its memory is swapped out. The process itself does not need to cooperate.
#pragma once
#include <cstdint>
#include <string>

namespace hvd {

// Return the state of process `pid` as a JSON object, or "" if the process does not exist. "at" is the time in
// nanoseconds of the monotonic clock, "tracer" the PID of the debugger or 0, "faults" the number of pages read from
// disk so far, and "blocked" the ticks (1/100 s) spent waiting for disks. There are also "pid", "resident_kib" and
// "swapped_kib". "threads" lists the main thread first, then up to `threads` others. Each thread has "id", "name",
// "state" (a letter as in ps(1)), "cpu" in ticks, "wait" (the kernel function or ""), "call" (the system call number or
// -1), and "file" (the file that the call reads or writes, or "").
std::string process_state(int pid, size_t threads = 64);

}  // namespace hvd
