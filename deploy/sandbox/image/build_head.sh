#!/bin/sh
# Makes /opt/meshd/venv with meshd's dependencies, out of a folder of wheels, with an image's own Python. Only TARGET is
# written: the image is mounted read-only. Runs in a mount and a PID namespace of its own.
#
# usage: build_head.sh IMAGE TARGET WHEELS REQUIREMENT...
set -eu
image=$1 target=$2 wheels=$3
shift 3
mount --bind "$image" "$image"
mount -o remount,bind,ro "$image"
mount --bind "$target" "$image/opt/meshd"
mount -t proc proc "$image/proc"
mount -t tmpfs tmpfs "$image/tmp"
mkdir "$image/tmp/wheels"
mount --bind "$wheels" "$image/tmp/wheels"
chroot "$image" python3 -m venv /opt/meshd/venv
chroot "$image" /opt/meshd/venv/bin/pip install --no-input --disable-pip-version-check --no-cache-dir \
    --no-index --find-links /tmp/wheels "$@"
