#!/bin/sh
# Makes a clone of this repository runnable on a bare Debian 12 or 13: installs the few system packages that are missing
# and creates .venv with meshd and its development tools. A second run finds everything done and takes no time.
#
# usage: deploy/sandbox/setup.sh        (as root)
#
# MESHD_CACHE   where downloads and images are kept, shared by all clones (/var/cache/meshd-sandbox)
# MESHD_PYTHON  the Python to use, 3.11 or later (python3)
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cache=${MESHD_CACHE:-/var/cache/meshd-sandbox}
venv=$root/.venv
stamp=$venv/.meshd-setup
begun=$(date +%s)
child=

say() { printf '  [%5ss] %s\n' "$(($(date +%s) - begun))" "$*" >&2; }
die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# step TITLE COMMAND... - runs it with its output in the log, says every 5 seconds what it is at, stops the script if it
# fails.
step() {
    title=$1
    shift
    say "$title ..."
    started=$(date +%s)
    ticked=$started
    # Not the lock's descriptor: a daemon that a package starts must not hold the lock for ever.
    "$@" >"$log" 2>&1 </dev/null 9>&- &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        sleep 0.2
        now=$(date +%s)
        if [ $((now - ticked)) -ge 5 ]; then
            ticked=$now
            say "$title: $(tail -n 1 "$log" | tr -d '\r' | cut -c 1-90)"
        fi
    done
    if wait "$child"; then
        child=
        say "$title: done in $(($(date +%s) - started)) s"
    else
        child=
        tail -n 25 "$log" >&2
        die "$title failed; all of its output is in $log"
    fi
}

stop() {
    [ -z "$child" ] || kill "$child" 2>/dev/null || true
    printf 'setup: interrupted; the next run goes on from what was complete\n' >&2
    exit 130
}
trap stop INT TERM

# A shim (pyenv and the like) depends on settings that a later run may not have: the interpreter behind it does not.
find_python() {
    python=$("${MESHD_PYTHON:-python3}" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))') ||
        die "python3 is missing: apt-get install python3"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "Python 3.11 or later is needed, $python is $("$python" -V 2>&1)"
}

missing_packages() {
    [ -e /usr/sbin/debootstrap ] || echo debootstrap
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || echo debian-archive-keyring
    command -v systemd-nspawn >/dev/null || echo systemd-container
    command -v runc >/dev/null || echo runc
    command -v nft >/dev/null || echo nftables
    command -v ip >/dev/null || echo iproute2
    command -v mount >/dev/null || echo mount
    command -v mke2fs >/dev/null || echo e2fsprogs
    { command -v ssh && command -v ssh-keygen; } >/dev/null || echo openssh-client
    { command -v nsenter && command -v unshare && command -v flock; } >/dev/null || echo util-linux
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    command -v cc >/dev/null || echo gcc
    command -v make >/dev/null || echo make
    [ -e /usr/include/stdlib.h ] || echo libc6-dev
    [ -e /usr/include/fuse3/fuse.h ] || echo libfuse3-dev
    command -v s6-svscan >/dev/null || echo s6
    ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || echo libfaketime
    command -v shellcheck >/dev/null || echo shellcheck
    # For the tests of the web page; a browser without a font draws boxes.
    command -v chromium >/dev/null || echo chromium fonts-dejavu-core
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q update
    # shellcheck disable=SC2086 # a list of package names
    apt-get -q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 install --no-install-recommends $packages
}

# uv takes a fifth of pip's time but does not read pip's settings; it gets them in its own words. Whatever it stumbles
# over, pip has the last word.
setting() { "$venv/bin/python" -m pip config get "$1" 2>/dev/null || true; }

install_project() {
    cd "$root"
    "$venv/bin/python" -m pip --disable-pip-version-check install -q uv &&
        install_with_uv ||
        "$venv/bin/python" -m pip --disable-pip-version-check install --progress-bar off -e '.[dev]'
}

install_with_uv() {
    export UV_CACHE_DIR="$cache/uv"
    # The host's certificates, as Debian's pip takes them, not uv's own list.
    export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
    index=${PIP_INDEX_URL:-$(setting global.index-url)}
    extra=${PIP_EXTRA_INDEX_URL:-$(setting global.extra-index-url)}
    links=${PIP_FIND_LINKS:-$(setting global.find-links)}
    hosts=${PIP_TRUSTED_HOST:-$(setting global.trusted-host)}
    cert=${PIP_CERT:-$(setting global.cert)}
    [ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
    [ -z "$extra" ] || export UV_INDEX="${UV_INDEX:-$extra}"
    [ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$(echo "$links" | tr ' ' ',')}"
    [ -z "$hosts" ] || export UV_INSECURE_HOST="${UV_INSECURE_HOST:-$hosts}"
    [ -z "$cert" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$cert}"
    "$venv/bin/uv" pip install --python "$venv/bin/python" -e '.[dev]'
}

create_venv() {
    rm -rf "$venv"
    "$python" -m venv "$venv"
}

[ "$(id -u)" = 0 ] || die "needs root (machines, namespaces, packages): run it with sudo"
[ -r "$root/pyproject.toml" ] || die "$root holds no pyproject.toml"
find_python
want="$root $python $("$python" -V 2>&1) $(sha256sum <"$root/pyproject.toml")"
packages=$(missing_packages | tr '\n' ' ')
if [ -n "$packages" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
    mkdir -p "$cache/locks" "$cache/logs"
    log=$cache/logs/setup.log
    : >"$log"
    if command -v flock >/dev/null; then
        exec 9>"$cache/locks/setup.lock"
        flock -n 9 || {
            say "another run is setting up, waiting for it"
            flock 9
        }
    fi
    packages=$(missing_packages | tr '\n' ' ')
    [ -z "$packages" ] || step "system packages: $packages" install_packages
    if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
        "$venv/bin/python" -c "import sys; sys.exit(sys.version_info[:2] != $("$python" -c 'import sys; print(sys.version_info[:2])'))" 2>/dev/null ||
            step "virtual environment" create_venv
        step "meshd and its tools (from PyPI)" install_project
        # Last of all: a stamp says that everything before it is done.
        printf '%s\n' "$want" >"$stamp"
    fi
fi
