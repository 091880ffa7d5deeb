// The OpenMP runtime that torch computes with, found among the libraries of the process and called through pointers.
//
// The module links no runtime: the name and folder of torch's runtime differ between its wheels (libgomp.so.1,
// libgomp-a34b3233.so.1, libomp.dylib, libiomp5md.dll), and a second runtime would be a second pool of threads beside
// torch's. It is looked up once, at the first use, so torch must be imported by then.
#pragma once

#include <string>

namespace regard {
namespace openmp {

// The file of the runtime; empty if torch has none, or one with neither interface.
const std::string& file();

// Whether the calling thread is in a team of that runtime. False without one.
bool in_parallel();

// Whether the threads of the team poll for the next region, for milliseconds: the default of all runtimes. False if they
// sleep (OMP_WAIT_POLICY=passive, a small GOMP_SPINCOUNT or KMP_BLOCKTIME=0 when torch was loaded), or without a runtime.
bool threads_poll();

// Calls run(context, thread) on a team of ``threads``, thread in 0 .. threads - 1, and returns when all are done.
// The runtime may provide fewer threads than requested; without a runtime, the caller is the team.
void run_team(int threads, void (*run)(void* context, int thread), void* context);

}  // namespace openmp
}  // namespace regard
