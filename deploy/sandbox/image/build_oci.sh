#!/bin/sh
# Makes an OCI image, as one file TARGET/image.tar, out of the files of another image. Runs in a mount and a PID namespace
# of its own, with the programs of an image that has umoci and skopeo.
#
# usage: build_oci.sh LAYERS FILES TARGET      LAYERS and FILES: overlayfs lowerdir lists, or one folder
set -eu
layers=$1 files=$2 target=$3
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/upper2 /mnt/work2 /mnt/root
mount -t overlay -o "lowerdir=$layers,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
mkdir /mnt/root/files /mnt/root/target
case $files in
*:*) mount -t overlay -o "lowerdir=$files,upperdir=/mnt/upper2,workdir=/mnt/work2" overlay /mnt/root/files ;;
*) mount --bind "$files" /mnt/root/files ;;
esac
mount --bind "$target" /mnt/root/target
mount -t proc proc /mnt/root/proc
mount -t tmpfs tmpfs /mnt/root/tmp
chroot /mnt/root sh -euc '
    cd /tmp
    umoci init --layout layout
    umoci new --image layout:image
    umoci insert --image layout:image /files /
    umoci config --image layout:image --config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    skopeo copy --quiet oci:layout:image oci-archive:/target/image.tar'
