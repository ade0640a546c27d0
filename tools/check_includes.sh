#!/usr/bin/env bash
# Includes go only down the list of folders: a file may include its own folder's headers and those
# of the folders before it. include/hillstar is for all and includes nothing of src/. Headers that
# exist for a GPU and for the emulated one are named without their folder.
set -euo pipefail
cd "$(dirname "$0")/.."

find include src -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | sort |
  xargs awk '
    BEGIN {
      n = split("hillstar core numerics device formats tokenizer grammar kv ops model experts engine " \
                "server cli", order, " ")
      for (i = 1; i <= n; ++i) rank[order[i]] = i
    }
    FNR == 1 { split(FILENAME, part, "/"); mine = part[2] }
    /^#include "/ {
      split($0, quoted, "\"")
      split(quoted[2], path, "/")
      theirs = path[1]
      if (quoted[2] ~ /^(ptx|launch_kernel)\.cuh$|^emulated_[a-z]+\.h$/) theirs = "device"
      where = FILENAME ":" FNR ": "
      if (!(mine in rank)) fail(where "the folder " mine " is not on the list")
      else if (!(theirs in rank)) fail(where quoted[2] " does not begin with a folder of the list")
      else if (rank[theirs] > rank[mine]) fail(where mine " may not include " quoted[2])
    }
    function fail(message) { print message; failed = 1 }
    END { exit failed }
  '
echo "every include goes down the list"
