// What the machine has, as far as a program must know it.
#pragma once

namespace hillstar {

// Physical cores that this process may run on; at least 1.
int NumUsableCores();

}  // namespace hillstar
