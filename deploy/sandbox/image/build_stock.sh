#!/bin/sh
# Fills a directory with what the images that a cloud offers for pods have: a small Debian with Python and OpenSSH, and
# nothing of systemd, Slurm, munge, s6 or tailscale. Runs in a mount and a PID namespace of its own.
#
# usage: build_stock.sh ROOT SUITE MIRROR SECURITY_MIRROR DEBS APT_CONF CA_BUNDLE PACKAGE...
set -eu
root=$1 suite=$2 mirror=$3 security=$4 debs=$5 apt_conf=$6 ca_bundle=$7
shift 7
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH 2>/dev/null || true

debootstrap --variant=minbase --include=ca-certificates --cache-dir="$debs" "$suite" "$root" "$mirror"

mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
cp "$apt_conf" "$root/run/apt-host.conf"
[ ! -f "$ca_bundle" ] || cp "$ca_bundle" "$root/run/ca-host.crt"
touch "$root/etc/resolv.conf"
mount --bind "$(readlink -f /etc/resolv.conf)" "$root/etc/resolv.conf"
mount --bind "$debs" "$root/var/cache/apt/archives"
cat >"$root/etc/apt/sources.list" <<END
deb $mirror $suite main
deb $mirror $suite-updates main
deb $security $suite-security main
END
cat >"$root/etc/dpkg/dpkg.cfg.d/sandbox" <<'END'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/locale/*
END

export APT_CONFIG=/run/apt-host.conf
chroot "$root" apt-get -q update
chroot "$root" apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends "$@"
unset APT_CONFIG

rm -f "$root"/etc/ssh/ssh_host_*
umount "$root/var/cache/apt/archives" "$root/etc/resolv.conf"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root/etc/resolv.conf"
find "$root/var/log" -type f -delete
printf 'deb http://deb.debian.org/debian %s main\n' "$suite" >"$root/etc/apt/sources.list"
