#!/usr/bin/env bash
# Runs every fuzz target of a build for some seconds; stops at the first finding.
#   tools/fuzz.sh BUILD SECONDS
set -euo pipefail
build=$1
seconds=$2
found=0
while read -r target; do
  found=1
  corpus="$build/corpus/$(basename "$target")"
  mkdir -p "$corpus"
  echo "$(basename "$target"): $seconds s"
  "$target" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=20 -verbosity=0 \
    -artifact_prefix="$corpus-finding-" "$corpus"
done < <(find "$build" -name '*_fuzz' -type f -perm -u+x | sort)
[ "$found" -eq 1 ] || { echo "there is no fuzz target in $build" >&2; exit 1; }
