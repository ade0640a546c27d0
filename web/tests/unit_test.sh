#!/usr/bin/env bash
# The tests of the page's parts that need no browser. Exits 77 (skipped) where they cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/can_run.sh
node_modules/.bin/vitest run --reporter=dot
