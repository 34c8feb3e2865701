#!/bin/sh
# An invitation: makes a machine that somebody owns a host of a meshd cluster. Its owner runs it there as root, once, from
# a file or as the input of a shell. Everything that could speak against it is checked before anything is changed.
# Rendered by meshd/bootstrap/invitation.py like stage 1; assets.py puts FILE into the place of a line `PART FILE`.
# shellcheck disable=SC2034,SC2154,SC2170  # the parts use them
set -u
umask 077
export PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:${PATH:-}"
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1
MACHINE=@HOST@
LOGIN=@LOGIN_SERVER@
HEADS=@HEADS@
AUTH_KEY=@AUTH_KEY@
OLDEST=@SLURMD_OLDEST@ NEWEST=@SLURMD_NEWEST@
ETC=/var/lib/meshd-host
KEY=$ETC/tailscale.key
JOIN=$ETC/enrol.json
PYZ=/opt/meshd-host/meshd-node.pyz
VERB=enrol
TRIES=@TRIES@
NEEDS='tailscale python3' PROXY=
FOUND=$ETC/found
UNIT=meshd-host
ROOM_KIB=512000
SEEN='etc usr/share/keyrings var/lib/apt/extended_states var/lib/ucf var/lib/tailscale'
DEVICE=ours

say() { printf 'meshd: %s\n' "$*" >&2; }

refuse() {
  [ ! -e $FOUND/complete ] || [ -e $ETC/host.json ] || give_up "$*"
  say "this machine stays as it is: $*"
  exit 1
}

# What is half-done ends before anything is taken back. A machine that the head has accepted goes on instead.
cut_off() {
  trap '' INT TERM HUP
  [ -z "${fetch:-}" ] || { kill "$fetch"; wait "$fetch"; } 2>/dev/null
  [ ! -e $ETC/host.json ] || start_host
  give_up "interrupted"
}

give_up() {
  say "$*"
  case "$*" in *'auth key'*) say "the key is for one login and ends with its invitation: has another machine used it?" ;; esac
  say "taking back what was changed"
  go_back
  exit 1
}

# PART missing.sh
# PART tailnet.sh
# PART take_off.sh

python_ok() { python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; }

all_there() { { [ "$DEVICE" = own ] || tailscale_ok; } && python_ok; }

run_tailscaled() { systemctl enable --now tailscaled >/dev/null 2>&1; }

check() {
  [ "$(id -u)" = 0 ] || refuse "run this as root"
  [ -d /run/systemd/system ] || refuse "systemd does not run here"
  ID='' PRETTY_NAME=''
  [ ! -r /etc/os-release ] || . /etc/os-release
  case "$ID" in
    debian | ubuntu) ;;
    *) refuse "it runs '${PRETTY_NAME:-$ID}', and only Debian and Ubuntu are supported" ;;
  esac
  ! command -v python3 >/dev/null || python_ok || refuse "its Python is older than 3.9: upgrade Debian or Ubuntu"
  [ ! -e $ETC/host.json ] || go_on
  for path in /etc/meshd-node /var/lib/meshd-node /etc/meshd /var/lib/meshd; do
    [ ! -e $path ] || refuse "it is a node or the head of a cluster already ($path is there)"
  done
  [ "$(date +%s)" -lt @EXPIRES@ ] || refuse "the invitation has expired (or this clock is wrong): make another one"
  check_room
  check_slurm
  check_tailnet
}

# A cut of power between the head's answer and the start of the host agent leaves a host that does nothing.
go_on() {
  ! grep -qs "\"host\": \"$MACHINE\"" $ETC/host.json || [ -e $ETC/last ] || systemctl -q is-active $UNIT || start_host
  refuse "it is a host of a cluster already: the head evicts it with 'meshctl remove'"
}

# Packages, apt's lists, the node agent, and a copy of what was here before.
check_room() {
  for place in /usr /var/lib /opt; do
    free=$(df -Pk $place 2>/dev/null | tail -n 1 | { read -r _ _ _ kib _; echo "$kib"; })
    case "$free" in '' | *[!0-9]*) continue ;; esac
    [ "$free" -ge $ROOM_KIB ] ||
      refuse "only $((free / 1024)) MiB are free in $place: $((ROOM_KIB / 1024)) are needed"
  done
}

check_slurm() {
  for comm in /proc/[0-9]*/comm; do
    read -r name <"$comm" 2>/dev/null || continue
    case "$name" in
      slurmd | slurmd-* | slurmctld* | slurmdbd*)
        refuse "$name runs here: it belongs to another Slurm cluster" ;;
      munged)
        refuse "munged runs here with a key of its own. If nothing needs it: systemctl disable --now munge" ;;
    esac
  done
  for path in /etc/slurm/slurm.conf /etc/slurm-llnl/slurm.conf /usr/local/etc/slurm.conf; do
    [ ! -e $path ] || refuse "$path is there: it belongs to another Slurm cluster. If nothing needs it, remove it"
  done
  check_slurmd
}

# The head serves some releases of slurmd: the one that is here must be one of them, or else the one that apt has.
check_slurmd() {
  [ -n "$OLDEST" ] || return 0
  found=$(slurmd -V 2>/dev/null) where='is installed here'
  if [ -z "$found" ]; then
    # without apt's own caches, which it would write
    found=$(apt-cache -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= policy slurmd 2>/dev/null | grep Candidate:)
    where="is what apt has for ${PRETTY_NAME:-this system}"
  fi
  found=$(printf '%s' "$found" | grep -o '[0-9][0-9]\.[0-9][0-9]' | head -n 1)
  [ -z "$found" ] || printf '%s\n' "$OLDEST" "$found" "$NEWEST" | sort -c 2>/dev/null ||
    refuse "slurmd $found $where, and the head serves $OLDEST to $NEWEST. Upgrade, or add an archive with such a slurmd"
}

# A machine that its owner logged in on the head's tailnet keeps its device. On another tailnet it cannot be a host.
check_tailnet() {
  [ ! -e $FOUND/logged-in ] || return 0
  S=''
  if command -v tailscale >/dev/null; then S=$(status); fi
  if [ -z "$S" ]; then
    ! grep -qs '"_current-profile"\|profile-' /var/lib/tailscale/tailscaled.state ||
      refuse "tailscaled is not running, and it has a login: systemctl start tailscaled, and run this again"
  elif has '"BackendState": "Running"'; then
    of=$(printf '%s' "$S" | sed -n 's/^ *"MagicDNSSuffix": "\(.*\)",*$/\1/p' | head -n 1)
    [ -z @TAILNET@ ] || [ -z "$of" ] || [ "$of" = @TAILNET@ ] || refuse "it is on another tailnet ($of)"
    head_answers || refuse "tailscale is logged in here, and no head answers over it: is it on another tailnet?"
    tailscale_ok || refuse "tailscale 1.90 or newer is needed: upgrade it"
    DEVICE=own
  elif has '"HaveNodeKey": true'; then
    refuse "tailscale has a login that is not in use: 'tailscale up' or 'tailscale logout', and run this again"
  fi
  [ "$DEVICE" = own ] || [ -n "$AUTH_KEY" ] ||
    refuse "the head has no key to log it in: run 'tailscale up' here first, and this again"
}

head_answers() {
  for head in $HEADS; do
    case "$head" in *:*) head="[$head]" ;; esac
    for _ in 1 2 3; do
      curl -fsS -m 5 -o /dev/null "http://$head:@PORT@/v1/time" 2>/dev/null && return
      wget -q -T 5 -O /dev/null "http://$head:@PORT@/v1/time" 2>/dev/null && return
    done
  done
  return 1
}

# What was here before. An invitation that was cut off goes on: what it has found at first counts. A list that is not
# whole would have packages purged that were here before: it is written whole, or not at all.
keep() {
  [ -e $FOUND/complete ] && return
  rm -rf $FOUND
  write_down && sync && : >$FOUND/complete || {
    rm -rf $ETC ${PYZ%/*}
    refuse "what is here cannot be written down in $FOUND: is the disk full?"
  }
}

write_down() {
  mkdir -p $FOUND/root || return
  for place in $SEEN; do
    [ ! -e "/$place" ] || (cd / && cp -a --parents "$place" $FOUND/root/) || return
  done
  names >$FOUND/names || return
  list_packages >$FOUND/packages && grep -q '^installed dpkg ' $FOUND/packages || return
  for path in /var/lib/tailscale /var/cache/tailscale /var/log/munge /var/lib/munge /var/lib/slurm /var/log/slurm \
    /var/spool/slurm /var/spool/slurmd /var/log/meshd-node-setup.log; do
    [ -e $path ] || printf '%s\n' $path || return
  done >$FOUND/absent
  uname -n >$FOUND/hostname || return
  ! systemctl -q is-active tailscaled 2>/dev/null || : >$FOUND/running
}

same() {
  if [ -L "$1" ]; then [ "$(readlink "$1")" = "$(readlink "$2")" ]; else
    cmp -s "$1" "$2" && [ "$(stat -c '%a %u %g' "$1")" = "$(stat -c '%a %u %g' "$2")" ]
  fi
}

names() { find /var/lib/apt/lists -mindepth 1 2>/dev/null | sort; }

list_packages() { dpkg-query -W -f '${db:Status-Status} ${binary:Package} ${Version}\n' | sort; }

# Without Python, for a machine that never became a host. Nobody else has changed it in these minutes.
go_back() {
  [ -e $FOUND/complete ] || return
  # in memory: the disk may be full
  off=/run/meshd-host
  mkdir -p $off/root && came >$off/packages || { say "$off cannot be written: run this again"; exit 1; }
  [ ! -e $FOUND/logged-in ] || : >$off/logged-in
  [ ! -e $FOUND/running ] || : >$off/running
  {
    for place in $SEEN; do
      [ ! -e "/$place" ] || find "/$place" | while IFS= read -r path; do
        [ -e "$FOUND/root$path" ] || [ -L "$FOUND/root$path" ] || printf '%s\n' "$path"
      done
    done
    names | grep -vxFf $FOUND/names
    cat $FOUND/absent
  } >$off/gone
  take_off $off
  (cd $FOUND/root && find . ! -type d) | while IFS= read -r file; do
    same "$FOUND/root/$file" "/$file" || cp -aT --remove-destination "$FOUND/root/$file" "/$file"
  done
  rest=$(came | tr '\n' ' ')
  [ -z "$rest" ] || say "these packages stay, since others need them, or dpkg failed: $rest"
  rm -rf $off
  forget_meshd
}

# The packages that are here now and were not before.
came() {
  list_packages >$off/now && grep '^installed ' $FOUND/packages | cut -d' ' -f2 >$off/had && grep -qx dpkg $off/had ||
    return
  grep -v '^config-files \|^not-installed ' $off/now | cut -d' ' -f2 | grep -vxFf $off/had || [ $? = 1 ]
}

# Ends this script: the head has accepted the machine.
start_host() {
  python3 ${PYZ%/*}/lib $VERB || { say "its agent does not start: run this again"; exit 1; }
  welcome
  exit 0
}

welcome() {
  say "this machine is the host $MACHINE: 'meshctl hosts' shows it, 'meshctl remove $MACHINE' takes all of it back"
}

main() {
  check
  say "this machine becomes the host $MACHINE"
  mkdir -p $ETC ${PYZ%/*} && chmod 0700 $ETC || refuse "$ETC cannot be made"
  [ ! -f "$0" ] || chmod go= "$0"
  keep
  trap cut_off INT TERM HUP
  printf '%s\n' @ENROL@ >$JOIN.new && mv $JOIN.new $JOIN || refuse "$JOIN cannot be written"
  printf '%s\n' "$DEVICE" >$ETC/device
  all_there || install_missing
  check_slurmd
  rm -f $ETC/online
  if [ "$DEVICE" = ours ]; then
    : >$FOUND/logged-in || refuse "$FOUND cannot be written"
    start_tailscaled
    join_tailnet
    rm -f "$KEY"
    say "on the tailnet as $MACHINE"
  fi
  : >$ETC/online
  try=1 since=$(up_s)
  while begin_fetch; wait "$fetch"; rc=$?; [ "$rc" != 0 ]; do
    why=$(tail -n 1 $ETC/fetch.log)
    [ "$rc" != 3 ] || give_up "meshd was upgraded meanwhile: make another invitation"
    [ "$rc" != 4 ] || give_up "${why#meshd: }"
    say "not enrolled yet (try $try): ${why#meshd: }"
    # shellcheck disable=SC2170  # rendered as a number
    [ $(($(up_s) - since)) -lt @DEAD_MAN_S@ ] || give_up "no answer from the head"
    [ "$try" -gt 4 ] || sleep $((try * 2))
    [ "$try" -lt 5 ] || sleep 10
    try=$((try + 1))
  done
  trap - INT TERM HUP
  welcome
}

main
