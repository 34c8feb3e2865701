#!/bin/sh
# Starts one pod, and starts its container again whenever that ends. Runs in a mount namespace of its own, so that every
# mount made here goes when the pod does.
#
# usage: launch_pod.sh STATE LAYERS DISK_SIZE NAME
#
# STATE/skeleton is laid over LAYERS (an overlayfs lowerdir list); the result appears at STATE/disk/root, which
# STATE/config.json names as the container's. runc keeps its notes in STATE/runc; STATE/pid appears when the first process
# runs.
set -eu
state=$1 layers=$2 size=$3 name=$4

mount -t tmpfs -o "mode=0755,size=$size" tmpfs "$state/disk"
mkdir "$state/disk/upper" "$state/disk/work" "$state/disk/root"
cp -a "$state/skeleton/." "$state/disk/upper/"
mount -t overlay -o "lowerdir=$layers,upperdir=$state/disk/upper,workdir=$state/disk/work" overlay "$state/disk/root"

# As Docker does: at once, then after twice the time each time, up to a minute; again at once after ten good seconds.
pause=100
while :; do
    since=$(cut -d. -f1 /proc/uptime)
    code=0
    runc --root "$state/runc" run --bundle "$state" --pid-file "$state/pid" "$name" || code=$?
    # It never ran: what is wrong then does not mend itself.
    [ -e "$state/pid" ] || exit "$code"
    [ $(($(cut -d. -f1 /proc/uptime) - since)) -lt 10 ] || pause=100
    echo "the container's first process ended with status $code: it is started again"
    sleep "$((pause / 1000)).$(printf %03d "$((pause % 1000))")"
    pause=$((pause * 2))
    [ "$pause" -le 60000 ] || pause=60000
done
