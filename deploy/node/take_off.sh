# shellcheck shell=sh
# The end of the way back, which needs no Python: packages go that came with the invitation, and what they changed.
# An invitation has it, for the case that the head refuses the machine; and the node agent, for an eviction.

# take_off FOLDER: FOLDER has
#   packages   names of packages that go, a line each
#   root/      files that come back, at their paths
#   gone       paths that go, a line each
#   logged-in  a file, where the invitation logged the machine in on the tailnet
#   running    a file, where tailscaled ran before
# Doing it again does no harm.
take_off() {
  if [ -e "$1/logged-in" ]; then
    timeout 20 tailscale logout >/dev/null 2>&1
    systemctl stop tailscaled 2>/dev/null
  fi
  purge "$1/packages"
  if [ -d "$1/root" ]; then
    (cd "$1/root" && find . ! -type d) | while IFS= read -r file; do
      [ -d "/${file%/*}" ] || mkdir -p "/${file%/*}"
      cp -aT --remove-destination "$1/root/$file" "/$file"
    done
  fi
  if [ -e "$1/gone" ]; then
    while IFS= read -r path; do
      case "$path" in /*/*) rm -rf --one-file-system -- "$path" ;; esac
    done <"$1/gone"
  fi
  systemctl daemon-reload
  [ ! -e "$1/running" ] || systemctl start tailscaled
}

# dpkg removes no package that another one needs, unlike apt. Another program may hold its lock for minutes.
purge() {
  [ -s "$1" ] || return
  n=0
  # shellcheck disable=SC2046  # names of packages
  until said=$(DEBIAN_FRONTEND=noninteractive dpkg --purge $(cat "$1") 2>&1 </dev/null); do
    case "$said" in *lock*) ;; *) break ;; esac
    [ "$n" != 0 ] || printf 'meshd: waiting for up to 10 min: %s\n' "$(printf '%s' "$said" | head -n 1)" >&2
    [ $((n += 1)) -lt 300 ] || break
    sleep 2
  done
}

# The machine is as before: meshd's own files go last, so that a cut of power leaves nothing behind.
forget_meshd() {
  systemctl disable meshd-host 2>/dev/null
  rm -rf /var/lib/meshd-host
  rm -f /etc/systemd/system/meshd-host.service /etc/systemd/system/multi-user.target.wants/meshd-host.service
  rm -rf /opt/meshd-host
  systemctl daemon-reload
}
