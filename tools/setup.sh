#!/usr/bin/env bash
# The packages that Hillstar is built and tested with, in one place.
#
#   tools/setup.sh check SET     say what is missing; exit 1 if anything is
#   tools/setup.sh install SET   say what is missing, then install it with apt-get
#   tools/setup.sh npm           fetch what tests of templates, clients, grammars and the page need
#
# SET is build, test (includes build) or fuzz (includes build).
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages="build-essential cmake ninja-build pkg-config libcli11-dev libedit-dev libfmt-dev
  libspdlog-dev nlohmann-json3-dev libpcre2-dev libssl-dev libxxhash-dev libhwloc-dev libgtest-dev
  libboost1.81-dev libboost-context1.81-dev prometheus-cpp-dev"
test_packages="$build_packages chromium clang-format curl git nodejs npm"
fuzz_packages="$build_packages clang libclang-rt-14-dev"

packages_of() {
  case "$1" in
    build) echo $build_packages ;;
    test) echo $test_packages ;;
    fuzz) echo $fuzz_packages ;;
    *) echo "setup.sh: there is no set \"$1\"; there are build, test and fuzz" >&2; exit 2 ;;
  esac
}

is_installed() {
  # Node is often there from another source than Debian, which then conflicts with Debian's.
  case "$1" in
    nodejs) command -v node >/dev/null && return ;;
    npm) command -v npm >/dev/null && return ;;
  esac
  dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

missing_of() {
  local package
  for package in $(packages_of "$1"); do
    is_installed "$package" || echo "$package"
  done
}

# Exits 0 where there is nothing that this script could do, so that the build may still be tried.
require_debian() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null && return
  echo "This is no Debian system: install the equivalents of these packages yourself if the build" \
    "misses one: $(packages_of "$1")" >&2
  exit 0
}

check() {
  local missing
  require_debian "$1"
  missing=$(missing_of "$1" | tr '\n' ' ')
  [ -z "$missing" ] && return
  echo "These Debian packages are missing: $missing" >&2
  echo "make setup installs them." >&2
  exit 1
}

install() {
  local missing sudo=""
  require_debian "$1"
  missing=$(missing_of "$1" | tr '\n' ' ')
  [ -z "$missing" ] && return
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "As root, run: apt-get install $missing" >&2
      exit 1
    }
    sudo="sudo"
  fi
  echo "Installing these Debian packages${sudo:+ (with sudo)}: $missing"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}

fetch_npm() {
  local folder
  for folder in tests/reference tests/clients tests/grammar web; do
    [ -f "$folder/package-lock.json" ] || continue
    [ "$folder/node_modules/.package-lock.json" -nt "$folder/package-lock.json" ] && continue
    echo "Fetching the npm packages of $folder/package-lock.json"
    (cd "$folder" && npm ci --no-audit --no-fund --loglevel=error)
  done
}

case "${1:-}" in
  check) check "${2:-build}" ;;
  install) install "${2:-build}" ;;
  npm) fetch_npm ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
