#include "core/cpu_topology.h"

#include <hwloc.h>

#include <algorithm>

namespace hillstar {

int NumUsableCores() {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return 1;
  int cores = 1;
  if (hwloc_topology_load(topology) == 0) {
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) != 0) {
      hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(topology));
    }
    // A core counts as soon as one of its hardware threads is allowed.
    if (hwloc_topology_restrict(topology, allowed, 0) == 0) {
      cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    }
    hwloc_bitmap_free(allowed);
  }
  hwloc_topology_destroy(topology);
  return std::max(cores, 1);
}

}  // namespace hillstar
