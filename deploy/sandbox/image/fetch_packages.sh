#!/bin/sh
# Downloads Debian packages, and what an image lacks of what they depend on, into DEBS. The image stays as it is. Runs in
# a mount and a PID namespace of its own.
#
# usage: fetch_packages.sh IMAGE SUITE MIRROR SECURITY_MIRROR DEBS APT_CONF CA_BUNDLE PACKAGE...
set -eu
image=$1 suite=$2 mirror=$3 security=$4 debs=$5 apt_conf=$6 ca_bundle=$7
shift 7
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin

mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
root=/mnt/root
mount -t overlay -o "lowerdir=$image,upperdir=/mnt/upper,workdir=/mnt/work" overlay "$root"
cp "$apt_conf" "$root/run/apt-host.conf"
[ ! -f "$ca_bundle" ] || cp "$ca_bundle" "$root/run/ca-host.crt"
cp "$(readlink -f /etc/resolv.conf)" "$root/etc/resolv.conf"
mount --bind "$debs" "$root/var/cache/apt/archives"
cat >"$root/etc/apt/sources.list" <<END
deb $mirror $suite main
deb $mirror $suite-updates main
deb $security $suite-security main
END
export APT_CONFIG=/run/apt-host.conf
chroot "$root" apt-get -q update
chroot "$root" apt-get -q -y install --no-install-recommends --download-only "$@"
