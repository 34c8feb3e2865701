#!/bin/sh
# Starts one machine. Runs in a mount namespace of its own, so that every mount made here goes when the machine does.
#
# usage: launch.sh STATE LAYERS DISK_SIZE CGROUP GPUS PROGRAM [ARGUMENT...]
#
# STATE/skeleton is laid over LAYERS (an overlayfs lowerdir list); the result appears at STATE/disk/root. PROGRAM runs in
# the control group CGROUP (a path below the root of the unified hierarchy), and again when the machine reboots.
set -eu
state=$1 layers=$2 size=$3 cgroup=$4 gpus=$5
shift 5

mount -t tmpfs -o "mode=0755,size=$size" tmpfs "$state/disk"
mkdir "$state/disk/upper" "$state/disk/work" "$state/disk/root" "$state/disk/dev"
cp -a "$state/skeleton/." "$state/disk/upper/"
mount -t overlay -o "lowerdir=$layers,upperdir=$state/disk/upper,workdir=$state/disk/work" overlay "$state/disk/root"

# The kernel's TUN driver, whatever the host's own device file looks like.
mknod -m 666 "$state/disk/dev/tun" c 10 200
# FUSE, through which a machine has a share: image/share/mount_nfs4.c.
mknod -m 666 "$state/disk/dev/fuse" c 10 229
# A GPU is a device file that opens. Mode 0600: making it usable for jobs is the node agent's task, as on some clouds.
if [ "$gpus" -gt 0 ]; then
    index=0
    while [ "$index" -lt "$gpus" ]; do
        mknod -m 600 "$state/disk/dev/nvidia$index" c 1 3
        index=$((index + 1))
    done
    mknod -m 600 "$state/disk/dev/nvidiactl" c 1 3
fi

# systemd wants one hierarchy that it understands. Where the host's is not the unified one, a second mount of the kernel's
# unified hierarchy stands in for it, seen by this machine only.
# Without a group of its own two machines would share one, and each believe that it owns it.
[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] && mkdir -p "/sys/fs/cgroup/$cgroup" 2>/dev/null ||
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p "/sys/fs/cgroup/$cgroup"
echo $$ >"/sys/fs/cgroup/$cgroup/cgroup.procs"

# nspawn's notes about its containers are of no use to this host, and it need not know whether systemd runs it.
mkdir -p /run/systemd
mount -t tmpfs tmpfs /run/systemd
# What nspawn ends with when the machine reboots and nspawn may not make it a control group of its own.
REBOOT=133
while :; do
    code=0
    "$@" || code=$?
    [ "$code" = "$REBOOT" ] || break
done
# Its cloud keeps the disk of a machine that is off: what was written, as a layer over LAYERS.
[ ! -e "$state/keep" ] || cp -a "$state/disk/upper" "$state/kept"
exit "$code"
