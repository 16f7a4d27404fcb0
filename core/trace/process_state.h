// State of a process as seen by the kernel: whether it runs, sleeps, is stopped or debugged, what its threads wait for,
// and how much of its memory is swapped out. The process itself need not cooperate.
#pragma once
#include <cstdint>
#include <string>

namespace hvd {

// Return the state of process `pid` as JSON, or "" if it does not exist. The main thread comes first, then up to
// `threads` others.
//   {"pid", "at": ns of the monotonic clock, "tracer": pid of the debugger or 0, "resident_kib", "swapped_kib",
//    "faults": pages read from disk so far, "blocked": ticks (1/100 s) spent waiting for disks,
//    "threads": [{"id", "name", "state": a letter as in ps(1), "cpu": ticks, "wait": the kernel function or "",
//                 "call": system call number or -1, "file": the file that call reads or writes, or ""}, ...]}
std::string process_state(int pid, size_t threads = 64);

}  // namespace hvd
