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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export work
# Of a source: a line of ptxas for each kernel's name, then one for its spills.
compile() {
  local source=$1 name
  shift
  name=$work/$(basename "$source" .cu)
  "$@" -cubin -gencode arch=compute_90,code=sm_90 -Xptxas=-v -o "$name.cubin" "$source" \
    > "$name.log" 2>&1 || { cat "$name.log"; return 1; }
}
export -f compile
printf '%s\0' "${sources[@]}" |
  xargs -0 -P "$(nproc)" -I{} bash -c 'compile "$@"' _ {} "$@" || exit 1
cat "$work"/*.log | awk '
  /Compiling entry function/ { split($0, quoted, "\047"); kernel = quoted[2] }
  /bytes spill stores/ {
    if (kernel == "") next
    ++kernels
    if (!/ 0 bytes spill stores, 0 bytes spill loads/) {
      ++spilling
      sub(/^ */, "")
      print kernel ": " $0
    }
    kernel = ""
  }
  END {
    printf "%d kernels for compute capability 9.0, of which %d keep registers in memory\n", kernels, spilling
    exit kernels == 0 || spilling > 0
  }' | c++filt
