#!/usr/bin/env bash
# A kernel file is compiled once a SIMD level. An inline function of a shared header that it emits
# would be merged with the same function of other files, and the linker might keep the copy that
# needs AVX-512. So kernel objects may define no function that the linker merges.
#   tools/check_kernel_symbols.sh OBJECT...
set -euo pipefail
[ $# -gt 0 ] || { echo "no kernel object is named" >&2; exit 1; }
failed=0
for object in "$@"; do
  merged=$(nm -C --defined-only "$object" | awk '$2 == "W"')
  [ -z "$merged" ] && continue
  echo "$object defines functions that are merged with other files':"
  echo "$merged"
  failed=1
done
[ "$failed" -eq 0 ] && echo "$# kernel objects define no function that is merged"
exit "$failed"
