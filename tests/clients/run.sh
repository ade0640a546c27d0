#!/usr/bin/env bash
# Runs one file of this folder's tests against a program: run.sh FILE.test.mjs build/hillstar
# Exits 77 (skipped) where Node or the packages are missing: tools/setup.sh npm fetches these.
set -euo pipefail
folder=$(dirname "$0")
readonly min_node=20  # of the OpenAI and Anthropic clients

command -v node >/dev/null || { echo "node is not installed"; exit 77; }
major=$(node -p 'process.versions.node.split(".")[0]')
[ "$major" -ge "$min_node" ] ||
  { echo "node is version $major; these clients need $min_node"; exit 77; }
[ -d "$folder/node_modules" ] ||
  { echo "the packages of tests/clients are not there: tools/setup.sh npm"; exit 77; }
exec node --test-reporter=spec "$folder/$1" "$2"
