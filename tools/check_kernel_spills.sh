#!/usr/bin/env bash
# No kernel may keep in memory what registers should hold: compiles the kernels for compute capability
# 9.0, whose registers they are cut for, and reads what ptxas says of each.
#   tools/check_kernel_spills.sh SOURCE... -- NVCC FLAG...
set -uo pipefail
sources=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  sources+=("$1")
  shift
done
if [ ${#sources[@]} -eq 0 ] || [ $# -lt 2 ]; then
  echo "$0: sources, --, nvcc and its flags are wanted" >&2
  exit 1
fi
shift
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export work
# SOURCE NVCC FLAG...: what ptxas says of a source's functions goes to a log.
compile() {
  local source=$1 name
  shift
  name=$work/${source//\//_}
  "$@" -cubin -gencode arch=compute_90,code=sm_90 -Xptxas=-v -o "$name.cubin" "$source" \
    > "$name.log" 2>&1 || { cat "$name.log"; return 1; }
}
export -f compile
printf '%s\0' "${sources[@]}" | xargs -0 -P 2 -I{} bash -c 'compile "$@"' _ {} "$@" || exit 1
# Kernels, and functions that are not inlined into them.
cat "$work"/*.log | awk '
  /Function properties for/ { name = $NF }
  /bytes spill stores/ {
    ++functions
    if (/ 0 bytes spill stores, 0 bytes spill loads/) next
    ++spilling
    sub(/^ */, "")
    print name ": " $0
  }
  END {
    printf "%d functions for compute capability 9.0, of which %d keep registers in memory\n", functions, spilling
    exit functions == 0 || spilling > 0
  }' | c++filt
