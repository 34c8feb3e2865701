#!/bin/sh
# Makes the file of a disk with one ext4 file system out of an image's layers. Runs in a mount and a PID namespace of its
# own.
#
# usage: build_disk.sh DISK LAYERS SIZE
#
# LAYERS is an overlayfs lowerdir list of two or more. The file takes no more room than what is in it.
set -eu
disk=$1 layers=$2 size=$3
mount -t tmpfs tmpfs /mnt
mkdir /mnt/root
mount -t overlay -o "lowerdir=$layers" overlay /mnt/root
truncate -s "$size" "$disk"
mke2fs -q -t ext4 -m 0 -J size=16 -E lazy_itable_init=1,root_owner=0:0 -d /mnt/root "$disk"
