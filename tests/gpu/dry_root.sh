#!/usr/bin/env bash
# A machine of namespaces that stands in for the one with the GPU: a plain Debian without browser and network.
#
#   dry_root.sh make ROOT     lays a fresh base system at ROOT
#   dry_root.sh start ROOT    starts the machine: its own mounts, processes, and a loopback alone
#   dry_root.sh call ROOT SECONDS OUT TREE COMMAND [CARRIED...]
#                             sends the checkout TREE with the CARRIED paths, and runs COMMAND in it
#   dry_root.sh stop ROOT     ends every process there; its disk stays
#
# A call is what a call on the GPU machine is: what travels is counted against 64 MiB, everything else of the
# checkout there is removed first, the command ends at its limit with every process of its session, and at
# most 8 files of 16 MiB come back from its $OUT into OUT.
#
# Needs root and debootstrap (which this installs on Debian), and CPython 3.12: FURROW_DRY_PYTHON is its
# prefix, looked for where it is absent. FURROW_DRY_SITE is a folder with torch, numpy and safetensors for it;
# absent: made by pip in .cache/gpu/dry/site. Both are mounted read-only.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
dry=$PWD/.cache/gpu/dry
# What Debian's Python would bring along, and CPython 3.12 is linked with.
packages=libbz2-1.0,libexpat1,libffi8,liblzma5,libreadline8,libsqlite3-0,libssl3,libuuid1,zlib1g,iproute2
packages=$packages,procps,util-linux
travels_max=$((64 << 20))
file_max=$((16 << 20))

fail() { echo "dry_root: $*" >&2; exit 1; }

python_prefix() {
  local found=${FURROW_DRY_PYTHON:-} candidate
  if [ -z "$found" ]; then
    for candidate in python3.12 "$HOME"/.pyenv/versions/3.12*/bin/python3.12 /usr/local/bin/python3.12; do
      found=$("$candidate" -c 'import sys; print(sys.base_prefix)' 2>/dev/null) && break
    done
  fi
  [ -x "$found/bin/python3.12" ] || fail "no CPython 3.12 was found: name its prefix with FURROW_DRY_PYTHON"
  echo "$found"
}

site_folder() {
  local site=${FURROW_DRY_SITE:-$dry/site}
  if [ ! -d "$site/torch" ]; then
    [ -z "${FURROW_DRY_SITE:-}" ] || fail "$site holds no torch"
    grep -E '^(torch|numpy|safetensors)\b' trainer/requirements.in >"$dry/requirements.txt"
    grep -q '^numpy' "$dry/requirements.txt" || echo numpy >>"$dry/requirements.txt"
    rm -rf "$site.new"
    "$(python_prefix)/bin/python3.12" -m pip install --quiet --disable-pip-version-check \
      --root-user-action=ignore --no-compile --target "$site.new" --requirement "$dry/requirements.txt"
    mv "$site.new" "$site"
  fi
  echo "$site"
}

make() {
  local root=$1
  [ "$(id -u)" = 0 ] || fail "needs root"
  [ ! -e "$root.pid" ] || stop "$root"
  mkdir -p "$dry"
  if [ ! -d "$dry/base" ]; then
    if ! command -v debootstrap >/dev/null; then
      apt-get update -q >/dev/null
      apt-get install -qy debootstrap >/dev/null
    fi
    rm -rf "$dry/base.new"
    debootstrap --variant=minbase --include="$packages" bookworm "$dry/base.new" >"$dry/debootstrap.log" ||
      fail "see $dry/debootstrap.log"
    rm -rf "$dry/base.new/var/cache/apt" "$dry/base.new/var/lib/apt/lists"
    mv "$dry/base.new" "$dry/base"
  fi
  site_folder >/dev/null
  rm -rf --one-file-system "$root"
  mkdir -p "$(dirname "$root")"
  cp -a "$dry/base" "$root"
  # What must not be there: then the carried files alone cannot have drawn a page.
  local found
  found=$(find "$root" -xdev \( -iname '*chrom*' -o -name 'libnss3*' -o -name '*.ttf' -o -name fonts.conf \
    -o -name 'libfontconfig*' \) -print -quit)
  [ -z "$found" ] || fail "$found is in the base system; it would hide what was not carried"
}

# In the new namespaces: turns ROOT into their root, then reaps processes that lost their parent.
begin() {
  local root=$1 prefix=$2 site=$3 name
  mount --make-rprivate /
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t tmpfs -o mode=755 dev "$root/dev"
  for name in null zero full random urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
  done
  ln -s /proc/self/fd "$root/dev/fd"
  mkdir -p "$root/dev/shm" "$root$prefix" "$root/opt/site" "$root/usr/local/bin" "$root/call"
  mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
  mount --bind -o ro "$prefix" "$root$prefix"
  mount --bind -o ro "$site" "$root/opt/site"
  ln -sf "$prefix/bin/python3.12" "$root/usr/local/bin/python3"
  ip link set lo up
  mkdir -p "$root/.outside"
  cd "$root"
  pivot_root . .outside
  umount -l /.outside
  rmdir /.outside
  # bash as process 1 reaps what is left to it.
  exec env -i PATH=/usr/local/bin:/usr/bin:/bin \
    /bin/bash -c 'trap : TERM; while :; do sleep 3600 & wait $!; done' </dev/null >/dev/null 2>&1
}

start() {
  local root=$1 prefix site waited
  [ ! -e "$root.pid" ] || fail "$root runs already: $(cat "$root.pid")"
  prefix=$(python_prefix)
  site=$(site_folder)
  setsid unshare --net --mount --pid --ipc --uts --fork --kill-child \
    "${BASH_SOURCE[0]}" begin "$root" "$prefix" "$site" </dev/null >"$root.log" 2>&1 &
  local outer=$! inner=
  for waited in $(seq 100); do
    inner=$(pgrep --parent "$outer" || true)
    # Its root was turned once it sees no file of ours.
    [ -n "$inner" ] && [ ! -e "/proc/$inner/root$here/dry_root.sh" ] &&
      [ -e "/proc/$inner/root/call" ] && break
    kill -0 "$outer" 2>/dev/null || { cat "$root.log" >&2; fail "$root did not start"; }
    sleep 0.1
    [ "$waited" -lt 100 ] || fail "$root did not start within 10 s"
  done
  echo "$inner" >"$root.pid"
}

stop() {
  local root=$1 inner waited
  [ -e "$root.pid" ] || return 0
  inner=$(cat "$root.pid")
  # Process 1 of the namespace: all others end with it. Only if it is still ours: its root is.
  if [ "/proc/$inner/root/call" -ef "$root/call" ]; then
    kill -KILL "$inner" 2>/dev/null || true
    for waited in $(seq 100); do
      kill -0 "$inner" 2>/dev/null || break
      sleep 0.1
    done
  fi
  rm -f "$root.pid"
}

# Runs in the machine: COMMAND in a session of its own, ended with all its processes when it returns or
# SECONDS are over.
in_session='
  cd /call/tree
  setsid /bin/bash -c "$2" &
  session=$!
  ( sleep "$1"; echo "dry_root: $1 s are over" >&2; pkill -KILL -s "$session" ) &
  timer=$!
  # Not waited for, so that bash does not report its end.
  disown "$timer"
  wait "$session"; status=$?
  # Both at once: the timer would go on to its message when its sleep ends.
  kill -KILL "$timer" $(pgrep -P "$timer") 2>/dev/null
  pkill -KILL -s "$session"
  exit "$status"'

call() {
  local root=$1 seconds=$2 out=$3 tree=$4 command=$5 status=0 path bytes inner
  shift 5
  [ -e "$root.pid" ] || fail "$root does not run"
  inner=$(cat "$root.pid")
  # The list, then what of it is there, as bytes on disk.
  local list=$root.travels
  git -C "$tree" ls-files -z --cached --others --exclude-standard >"$list"
  for path in "$@"; do
    [ -e "$tree/$path" ] || fail "$path is not in $tree"
    (cd "$tree" && find "$path" -type f -print0) >>"$list"
  done
  bytes=$(cd "$tree" && xargs -0 --no-run-if-empty stat -c %s <"$list" |
    awk '{ sum += $1 } END { print sum + 0 }')
  echo "travels: $bytes bytes of $travels_max"
  [ "$bytes" -le "$travels_max" ] || fail "$bytes bytes are more than travel in one call"
  rm -rf "$root/call/tree" "$root/call/out"
  mkdir -p "$root/call/tree" "$root/call/out"
  tar --create --directory "$tree" --null --files-from "$list" |
    tar --extract --no-same-owner --directory "$root/call/tree"
  nsenter --target "$inner" --mount --net --pid --ipc --uts --root --wdns=/ \
    env -i PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    PYTHONPATH=/opt/site OUT=/call/out PYTHONUNBUFFERED=1 \
    /bin/bash -c "$in_session" call "$seconds" "$command" </dev/null || status=$?
  rm -rf "$out"
  mkdir -p "$out"
  cp -r "$root/call/out/." "$out"
  [ "$(find "$out" -type f | wc -l)" -le 8 ] || fail "$out: more than 8 files do not come back"
  path=$(find "$out" -type f -size "+${file_max}c" -print -quit)
  [ -z "$path" ] || fail "$path: more than 16 MiB do not come back"
  return "$status"
}

case "${1:-}" in
make | start | stop) [ $# -eq 2 ] || fail "$1 ROOT"; "$1" "$(realpath -m "$2")" ;;
begin) shift; begin "$@" ;;
call)
  [ $# -ge 6 ] || fail "call ROOT SECONDS OUT TREE COMMAND [CARRIED...]"
  call "$(realpath -m "$2")" "${@:3}"
  ;;
*)
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 2
  ;;
esac
