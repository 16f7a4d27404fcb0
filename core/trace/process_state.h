// What a process is doing, as the kernel tells it: whether it runs, sleeps, is stopped or at a debugger, what its main thread waits for,
// how much of it is swapped out. Needs nothing of that process.
#pragma once
#include <cstdint>
#include <string>

namespace hvd {

// Of the process with this number, as JSON:
//   {"pid", "at": ns of the monotonic clock, "tracer": pid of the debugger or 0, "resident_kib", "swapped_kib", "faults": pages read from
//    disk so far, "blocked": ticks (1/100 s) that it has waited for disks, "threads": [{"id", "name", "state": a letter as in ps(1),
//    "cpu": ticks, "wait": the kernel's function or "", "call": number of the system call or -1, "file": what that call reads or writes, or
//    ""}, ...]}
// The main thread comes first, at most `threads` follow. "": there is no such process.
std::string process_state(int pid, size_t threads = 64);

}  // namespace hvd
