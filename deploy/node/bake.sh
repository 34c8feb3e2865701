#!/bin/sh
# Makes this machine the master of an image: cloud-init runs this as root on a machine that meshd rented for that alone. It
# installs what each node needs, takes off all that makes a machine itself, says so on the console, and powers off. When it
# cannot, it says why and stays: nobody then takes it for complete. It holds no secret, and is on no tailnet.
# Rendered by meshd/bootstrap/bake.py like stage 1; assets.py puts FILE into the place of a line `PART FILE`.
# shellcheck disable=SC2034  # the parts use them
set -u
umask 022
export PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:${PATH:-}"
ETC=/run/meshd-bake
NEEDS='tailscale python3'
POLICY=/usr/sbin/policy-rc.d

say() {
  printf 'meshd: %s\n' "$*"
  { printf 'meshd: %s\r\n' "$*" >/dev/console; } 2>/dev/null
}

give_up() {
  say "image failed: $*"
  exit 1
}

all_there() { tailscale_ok && command -v python3 >/dev/null; }

# PART missing.sh

# Slurm and munge compare numeric ids between machines: they are the head's before a package makes others.
account() {
  [ "$(id -u "$1" 2>/dev/null)" = "$2" ] && return
  ! id "$1" >/dev/null 2>&1 || give_up "this image has a user $1 with another number than the head"
  getent group "$1" >/dev/null || groupadd --system -g "$3" "$1" || give_up "cannot make the group $1"
  useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin -u "$2" -g "$3" "$1" ||
    give_up "cannot make the user $1"
}

installed() {
  for name in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || return 1
  done
}

install_packages() {
  try=1 since=$(up_s)
  while ! installed "$@"; do
    say "installing $* (try $try)"
    dpkg --configure -a >$ETC/apt.log 2>&1
    { apt update && apt -o DPkg::Lock::Timeout=60 install --no-install-recommends "$@"; } >>$ETC/apt.log 2>&1
    ! installed "$@" || return 0
    say "cannot install: $(grep ': ' $ETC/apt.log | tail -n 3 | tr '\n' ' ')"
    [ $(($(up_s) - since)) -lt 900 ] || give_up "no packages after 15 min of tries"
    ! grep -q 'MergeList\|be parsed' $ETC/apt.log || rm -rf /var/lib/apt/lists/*
    try=$((try + 1))
    sleep 10
  done
}

# What makes a machine itself, or is of no use on another.
forget_me() {
  systemctl stop meshd-node slurmd munge tailscaled 2>/dev/null
  systemctl disable slurmd munge 2>/dev/null
  rm -rf /var/lib/tailscale/* /var/lib/meshd-node /etc/meshd-node /opt/meshd-node /etc/munge/munge.key
  rm -rf /var/lib/cloud/instance /var/lib/cloud/instances /var/lib/cloud/sem /var/lib/cloud/data
  rm -f /etc/ssh/ssh_host_* /root/.ssh/authorized_keys /root/.bash_history /home/*/.ssh/authorized_keys
  rm -f /var/lib/dbus/machine-id /var/lib/systemd/random-seed /var/lib/systemd/credential.secret
  rm -rf /var/lib/dhcp/* /var/lib/dhcpcd/* /var/log/journal/* /var/spool/slurmd/*
  rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
  find /var/log -type f -exec truncate -s 0 {} +
  : >/etc/machine-id
  ! [ -e /etc/munge/munge.key ] && ! [ -e /var/lib/tailscale/tailscaled.state ] || give_up "cannot remove keys"
}

main() {
  mkdir -p $ETC
  [ -d /run/systemd/system ] || give_up "no systemd here"
  say "baking an image"
  [ -e $POLICY ] || { printf '#!/bin/sh\nexit 101\n' >$POLICY && chmod 755 $POLICY && made_policy=1; }
  all_there || install_missing
  account slurm @SLURM_UID@ @SLURM_GID@
  account munge @MUNGE_UID@ @MUNGE_GID@
  # As on a machine that joins: an image with Slurm gets none of these.
  # shellcheck disable=SC2046  # a list of words
  { command -v slurmd && command -v munged; } >/dev/null || install_packages $(echo @NODE_PACKAGES@)
  # shellcheck disable=SC2046
  install_packages $(echo @POOL_PACKAGES@)
  [ -z "${made_policy:-}" ] || rm -f $POLICY
  forget_me
  slurm=$(slurmd -V 2>/dev/null | tail -n 1)
  slurm=${slurm##* }
  tailscale=$(tailscale version 2>/dev/null | head -n 1)
  sync
  say "image ready slurm=${slurm:-none} tailscale=${tailscale:-none}"
  # Some clouds show no console of a machine that is off: until then meshd has to have read this, every 5 s.
  sleep 20
  systemctl poweroff
}

main
