#!/bin/sh
# Makes an OCI image, as one file TARGET/image.tar, out of a folder of files. Runs in a mount and a PID namespace of its
# own, with the programs of an image that has umoci and skopeo.
#
# usage: build_oci.sh LAYERS FOLDER TARGET      LAYERS: an overlayfs lowerdir list
set -eu
layers=$1 folder=$2 target=$3
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$layers,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
mkdir /mnt/root/folder /mnt/root/target
mount --bind "$folder" /mnt/root/folder
mount --bind "$target" /mnt/root/target
mount -t proc proc /mnt/root/proc
mount -t tmpfs tmpfs /mnt/root/tmp
chroot /mnt/root sh -euc '
    cd /tmp
    umoci init --layout layout
    umoci new --image layout:image
    umoci insert --image layout:image /folder /
    umoci config --image layout:image --config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    skopeo copy --quiet oci:layout:image oci-archive:/target/image.tar'
