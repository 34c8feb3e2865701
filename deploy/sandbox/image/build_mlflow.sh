#!/bin/sh
# Makes /opt/meshd-mlflow/venv with the installer of MLflow, out of a folder of wheels, with an image's own Python. Only
# TARGET is written: the image is mounted read-only. Runs in a mount and a PID namespace of its own.
#
# usage: build_mlflow.sh IMAGE TARGET WHEELS INSTALLER
set -eu
image=$1 target=$2 wheels=$3 installer=$4
mount --bind "$image" "$image"
mount -o remount,bind,ro "$image"
mount --bind "$target" "$image/opt"
mount -t proc proc "$image/proc"
mount -t tmpfs tmpfs "$image/tmp"
mkdir "$image/tmp/wheels" "$image/tmp/installer"
mount --bind "$wheels" "$image/tmp/wheels"
mount --bind "$installer" "$image/tmp/installer"
chroot "$image" /tmp/installer/install --deps-only --wheels /tmp/wheels
