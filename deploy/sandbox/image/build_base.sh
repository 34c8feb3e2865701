#!/bin/sh
# Fills a directory with a small Debian that boots systemd and carries Slurm. Runs in a mount and a PID namespace of its
# own (the caller sees to that), so that nothing stays mounted or running whatever happens here.
#
# usage: build_base.sh ROOT SUITE MIRROR SECURITY_MIRROR DEBS APT_CONF CA_BUNDLE PACKAGE...
set -eu
root=$1 suite=$2 mirror=$3 security=$4 debs=$5 apt_conf=$6 ca_bundle=$7
shift 7
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
# A caller's python settings must not reach the byte-compilation of Debian's own packages.
unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH 2>/dev/null || true

debootstrap --variant=minbase --include=ca-certificates --cache-dir="$debs" "$suite" "$root" "$mirror"

mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
cp "$apt_conf" "$root/run/apt-host.conf"
[ ! -f "$ca_bundle" ] || cp "$ca_bundle" "$root/run/ca-host.crt"
touch "$root/etc/resolv.conf"
mount --bind "$(readlink -f /etc/resolv.conf)" "$root/etc/resolv.conf"
mount --bind "$debs" "$root/var/cache/apt/archives"

cat >"$root/etc/apt/sources.list" <<EOF
deb $mirror $suite main
deb $mirror $suite-updates main
deb $security $suite-security main
EOF
cat >"$root/etc/dpkg/dpkg.cfg.d/sandbox" <<'EOF'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/locale/*
EOF
# Services start when a machine boots, never while its image is built.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"

# Slurm and munge compare numeric ids between machines: the same ones in every image.
chroot "$root" groupadd --gid 64030 slurm
chroot "$root" useradd --uid 64030 --gid slurm --home-dir /nonexistent --shell /usr/sbin/nologin slurm
chroot "$root" groupadd --gid 64031 munge
chroot "$root" useradd --uid 64031 --gid munge --home-dir /nonexistent --shell /usr/sbin/nologin munge

export APT_CONFIG=/run/apt-host.conf
chroot "$root" apt-get -q update
chroot "$root" apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends "$@"
unset APT_CONFIG

# What a machine must make or be given itself: keys, identity, logs. What a role starts: everything of Slurm.
chroot "$root" systemctl --quiet disable munge.service slurmd.service slurmctld.service
rm -f "$root/etc/munge/munge.key" "$root"/etc/ssh/ssh_host_* "$root/usr/sbin/policy-rc.d" "$root/etc/hostname"
: >"$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id"
find "$root/var/log" -type f -delete
umount "$root/var/cache/apt/archives" "$root/etc/resolv.conf"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root/etc/resolv.conf"
mkdir -p "$root/opt/meshd" "$root/var/lib/tailscale" "$root/var/lib/cloud/seed/nocloud"
chmod 700 "$root/var/lib/tailscale"
printf 'deb http://deb.debian.org/debian %s main\n' "$suite" >"$root/etc/apt/sources.list"
