#!/bin/sh
# Installs Debian packages over an image: what they add and change goes into LAYER, the image stays as it is. Runs in a
# mount and a PID namespace of its own.
#
# usage: build_packages.sh IMAGE LAYER WORK SUITE MIRROR SECURITY_MIRROR DEBS APT_CONF CA_BUNDLE PACKAGE...
#
# WORK is an empty directory in the file system of LAYER.
set -eu
image=$1 layer=$2 work=$3 suite=$4 mirror=$5 security=$6 debs=$7 apt_conf=$8 ca_bundle=$9
shift 9
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH 2>/dev/null || true

mkdir "$work/overlay" "$work/root"
root=$work/root
mount -t overlay -o "lowerdir=$image,upperdir=$layer,workdir=$work/overlay,redirect_dir=off,metacopy=off,index=off" \
    overlay "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/var/lib/apt/lists"
mount -t tmpfs tmpfs "$root/var/log"
cp "$apt_conf" "$root/run/apt-host.conf"
[ ! -f "$ca_bundle" ] || cp "$ca_bundle" "$root/run/ca-host.crt"
cp "$(readlink -f /etc/resolv.conf)" "$root/run/resolv.conf"
mount --bind "$debs" "$root/var/cache/apt/archives"
cat >"$root/run/sources.list" <<END
deb $mirror $suite main
deb $mirror $suite-updates main
deb $security $suite-security main
END
# Nothing in the image asks a name server yet: what is made here is removed again.
touch "$root/etc/resolv.conf"
mount --bind "$root/run/resolv.conf" "$root/etc/resolv.conf"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"

cat >>"$root/run/apt-host.conf" <<'END'
Dir::Etc::sourcelist "/run/sources.list";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
END
export APT_CONFIG=/run/apt-host.conf
chroot "$root" apt-get -q update
chroot "$root" apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends "$@"
umount "$root/etc/resolv.conf"
rm -f "$root/usr/sbin/policy-rc.d" "$root/etc/resolv.conf"
umount "$root/var/cache/apt/archives" "$root/var/log" "$root/var/lib/apt/lists" "$root/tmp" "$root/run" "$root/proc"
umount "$root"
