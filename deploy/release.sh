#!/usr/bin/env bash
# Builds what a release consists of, for the system it runs on.
#
#   deploy/release.sh         into dist/
#   deploy/release.sh FOLDER
#
#   furrow-VERSION-TARGET.tar.gz        the program, man pages, completions, licences, THIRD_PARTY_NOTICES.txt
#   furrow-VERSION-TARGET.debug.gz      its symbols and lines: gunzip it beside the program, and debuggers find it
#   furrow-VERSION.cdx.json             each crate in it with version, licence and checksum (CycloneDX)
#   SHA256SUMS
#
# The program also has its list of crates within (cargo auditable): `cargo audit bin furrow` and other scanners read it.
# Needs a clean checkout; the tools are built once into
# .cache/release-tools from packages that deploy/release-tools.txt pins by hash.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/setup.sh

TOOLS=.cache/release-tools

# Their packages are compared with the hashes before anything of them is compiled.
need_release_tools() {
  if cmp -s deploy/release-tools.txt "$TOOLS/installed.txt"; then return; fi
  say "building the tools"
  local scratch name version sum features package
  scratch=$(mktemp -d)
  mkdir -p "$scratch/src" "$TOOLS"
  touch "$scratch/src/lib.rs"
  printf '%s\n' '[package]' 'name = "release-tools"' 'version = "0.0.0"' 'edition = "2024"' '[workspace]' '[dependencies]' \
    >"$scratch/Cargo.toml"
  grep -v '^#' deploy/release-tools.txt | while read -r name version _; do
    printf '%s = "=%s"\n' "$name" "$version" >>"$scratch/Cargo.toml"
  done
  # These packages are programs, which cargo says it leaves out of the dependencies; it fetches them all the same.
  cargo fetch --quiet --manifest-path "$scratch/Cargo.toml" 2>/dev/null
  grep -v '^#' deploy/release-tools.txt | while read -r name version sum features; do
    package=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/cache" -name "$name-$version.crate" -print -quit)
    sha256sum --check --quiet <<<"$sum  $package"
    cargo install --quiet --locked --root "$TOOLS" --target-dir "$scratch/target" --version "=$version" \
      --features "$features" "$name"
  done
  rm -r "$scratch"
  cp deploy/release-tools.txt "$TOOLS/installed.txt"
}

# A panic names `crates/…` and `registry/…`, and no folder of the machine that built the program.
short_paths() {
  local home=${CARGO_HOME:-$HOME/.cargo}
  printf -- '--remap-path-prefix=%s=. --remap-path-prefix=%s/registry/src=registry --remap-path-prefix=%s=cargo' \
    "$PWD" "$home" "$home"
}

build() {
  # With lines, which are split off below.
  RUSTFLAGS="${RUSTFLAGS:-} $(short_paths)" "$TOOLS/bin/cargo-auditable" auditable build --locked --profile profiling \
    --features otel --bin furrow
  program=$(target_folder)/profiling/furrow
}

# Splits the lines and symbols off into $out; the program keeps the names of its functions, for backtraces.
split_symbols() {
  local symbols=$stage/furrow.debug
  objcopy --only-keep-debug --compress-debug-sections "$program" "$symbols"
  objcopy --strip-debug --add-gnu-debuglink="$symbols" "$program" "$content/furrow"
  gzip --no-name --best --stdout "$symbols" >"$out/$full.debug.gz"
}

notices() {
  "$TOOLS/bin/cargo-about" generate --locked --fail --features otel --config deploy/about.toml \
    --manifest-path Cargo.toml deploy/about.hbs >"$content/THIRD_PARTY_NOTICES.txt"
}

fill() {
  cp README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$content"
  mkdir "$content/man" "$content/completions"
  "$content/furrow" man "$content/man" >/dev/null
  local shell
  for shell in bash zsh fish; do "$content/furrow" completions "$shell" >"$content/completions/furrow.$shell"; done
}

if [ -n "$(git status --porcelain)" ]; then
  echo "$0: the checkout has changes; a release is made of a commit" >&2
  exit 2
fi
out=$(realpath -m "${1:-dist}")
need_cargo
need_release_tools
version=$(cargo pkgid --package furrow)
version=${version##*[@#]}
target=$(rustc --print host-tuple)
full=furrow-$version-$target
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
content=$stage/$full
mkdir -p "$content" "$out"
rm -f "$out"/furrow-* "$out/SHA256SUMS"

say "building furrow $version for $target"
build
say "packing"
split_symbols
notices
"$TOOLS/bin/cargo-sbom" --cargo-package furrow --output-format cyclone_dx_json_1_6 >"$out/furrow-$version.cdx.json"
fill
tar --create --directory "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r,go-w \
  --mtime="@$(git log -1 --format=%ct)" "$full" | gzip --no-name --best >"$out/$full.tar.gz"
(cd "$out" && sha256sum furrow-* >SHA256SUMS)
ls -l "$out"
