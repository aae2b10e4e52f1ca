# What sluice needs on a new Debian 12 machine, and how it gets it. Sourced by demo and test.

# To build and run: compiler, build tools, libraries.
BUILD_PACKAGES="g++ cmake ninja-build pkg-config ccache ca-certificates
  libfmt-dev nlohmann-json3-dev libcli11-dev libcurl4-openssl-dev libssl-dev libpcre2-dev
  libutf8proc-dev libzip-dev python3 python3-pip"

# To test: frameworks, an interpreter with a place for reference packages, and for the ARM kernels
# compilers and an emulator.
TEST_PACKAGES="libgtest-dev libgmock-dev python3-venv verilator
  g++-aarch64-linux-gnu g++-arm-linux-gnueabihf qemu-user-static"

# Only for `scripts/test --all`: a compiler with libFuzzer.
FUZZ_PACKAGES="clang-16 libclang-rt-16-dev"

say() { printf '\n== %s\n' "$*"; }

# Installs those of the packages that are missing.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "All Debian packages that are needed are installed"
    return
  fi
  say "Installing Debian packages: ${missing[*]}"
  local root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "sluice: error: not root and no sudo: install by hand: ${missing[*]}" >&2
      exit 1
    }
    root=(sudo)
  fi
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq -o DPkg::Lock::Timeout=300 --no-install-recommends "${missing[@]}" >/dev/null
}

# Configures (once) and builds a preset's targets: build PRESET [CMake options] -- [targets]
build() {
  local preset=$1 options=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  [ $# -gt 0 ] && shift
  say "Building ($preset)"
  cmake --preset "$preset" "${options[@]}" >"build-$preset.log" 2>&1 ||
    { cat "build-$preset.log"; return 1; }
  rm -f "build-$preset.log"
  cmake --build --preset "$preset" ${1:+--target "$@"}
}
