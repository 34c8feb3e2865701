# shellcheck shell=sh disable=SC2034,SC2154
# What a machine needs to get on the tailnet, installed where it is missing: for stage 1, an invitation and an image.
# It needs: ETC (a directory of root's), NEEDS (packages); and the functions say, give_up, all_there.
up_s() { cut -d. -f1 /proc/uptime; }

nap() { sleep 0.05; }

get() { curl -fsSL -m 120 -o "$2" "$1" || wget -q -T 120 -O "$2" "$1"; }

# 1.90 renews keys without a gap; older ones drop the link.
tailscale_ok() {
  v=$(tailscale version 2>/dev/null | head -n 1)
  major=${v%%.*} minor=${v#*.} minor=${minor%%.*}
  case "$major$minor" in ''|*[!0-9]*) return 1;; esac
  [ "$major" -gt 1 ] || [ "$minor" -ge 90 ]
}

install_missing() {
  say "installing $NEEDS"
  ID='' VERSION_CODENAME=''
  [ -r /etc/os-release ] && . /etc/os-release
  case "$ID" in debian|ubuntu) ;; *) give_up "no way to install $NEEDS on '$ID'";; esac
  base=@PACKAGES@/$ID/$VERSION_CODENAME
  keyring=/usr/share/keyrings/tailscale-archive-keyring.gpg list=/etc/apt/sources.list.d/tailscale.list
  try=1 since=$(up_s)
  while add_missing >$ETC/apt.log 2>&1; rc=$?; ! all_there; do
    say "cannot install $NEEDS (try $try, exit code $rc): $(grep ': ' $ETC/apt.log | tail -n 3 | tr '\n' ' ')"
    [ $(($(up_s) - since)) -lt 600 ] || give_up "no $NEEDS after 10 min of tries"
    # apt never repairs a truncated list itself
    ! grep -q 'MergeList\|be parsed' $ETC/apt.log || rm -rf /var/lib/apt/lists/*
    try=$((try + 1))
    sleep 10
  done
}

# At a first boot unattended-upgrades or cloud-init may hold apt's locks for minutes, and a mirror may be down.
add_missing() {
  type curl || type wget || { apt update; apt install curl ca-certificates; }
  get "$base.noarmor.gpg" "$keyring" && get "$base.tailscale-keyring.list" "$list" &&
    chmod 0644 "$keyring" "$list" || return
  dpkg --configure -a
  apt update
  # shellcheck disable=SC2086  # a list
  apt -o DPkg::Lock::Timeout=60 install $NEEDS
}

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qy "$@" </dev/null; }
