// A GPU in plain C++, as much of it as our kernels use: the same .cu files, compiled by the host's
// compiler with this folder before CUDA's, run thread by thread on the host. So every kernel, index
// map, graph and table is tested for its bits on machines without a GPU. Threads of a block are
// fibers; a barrier that a thread of the block never reaches aborts with the kernel's name. Blocks
// run one after another: no kernel may wait for another block. One host thread launches at a time.
#pragma once

#include "emulated_api.h"
#include "emulated_threads.h"
