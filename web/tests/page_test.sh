#!/usr/bin/env bash
# The page in Chromium against the mock server: tests/page_test.sh GROUP, with GROUP chat, streams,
# faults, live or access, or sanitise for the sanitising of answers. Exits 77 (skipped) where it cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/can_run.sh browser
if [ "$1" = sanitise ]; then
  exec node --test-reporter=spec tests/sanitise_test.mjs
fi
exec node --test-reporter=spec tests/page_test.mjs --only "$1"
