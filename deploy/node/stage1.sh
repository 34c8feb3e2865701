#!/bin/sh
# meshd stage 1: cloud-init runs this as root, or a container as its start command. It joins the tailnet, fetches the node
# agent from the head and starts it. Some clouds run it at every boot: each step first checks whether its work is done. No
# secret is ever an argument.
# Rendered by meshd/bootstrap/stage1.py, which quotes the @VALUES@ and drops comment lines. assets.py puts FILE into the
# place of a line `PART FILE`, and stage1_systemd.sh or stage1_container.sh into the place of the line PART. It keeps lines
# that end with `#: container` or `#: systemd` for that kind alone. It does the same with stage1_gang.sh, and lines that end
# with `#: gang` or `#: single`.
# shellcheck disable=SC2034,SC2154,SC2170  # the parts use them
set -u
umask 077
export PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:${PATH:-}"
MACHINE=@MACHINE@  #: single
MACHINE='' ID=''  #: gang
LOGIN=@LOGIN_SERVER@
ETC=/etc/meshd-node
KEY=$ETC/tailscale.key
STATE=/var/lib/meshd-node/state.json
JOIN=$ETC/join.json
PYZ=/opt/meshd-node/meshd-node.pyz
VERB=install
MARK=/var/lib/meshd-node/machine
LIB=/var/lib/tailscale
TRIES=@TRIES@

say() {
  printf 'meshd: %s\n' "$*"
  { printf 'meshd: %s\r\n' "$*" >/dev/console; } 2>/dev/null  #: systemd
  logger -t meshd "stage 1: $*" 2>/dev/null  #: systemd
  :  #: systemd
}

# PART
# PART missing.sh
# PART tailnet.sh
# GANG

# The state may be lost or damaged: the node token is enough to come back.
was_node() { [ -e "$STATE" ] || [ -e $ETC/node.token ] && [ -s $PYZ ]; }

# The machine cannot become a node. No job has ever run on it, unless it joined before. Then its agent keeps repairing
# the login, and its dead-man switch runs.
give_up() {
  say "$*"
  if was_node; then
    say "a node already: its agent goes on trying"
    start_agent
    exit 1
  fi
  give_back
  exit 1
}

# State in the image is another machine's: two machines with one node key fight for one address. The mark holds this
# machine's name, which is unique: after a reboot it matches, and nothing is wiped. No logout: it would log the other
# machine out.
stop_image() {
  stop_services
  stop_tailscaled
}

forget_image() {
  [ "$(cat "$MARK" 2>/dev/null)" = "$MACHINE" ] && return
  if [ -e $LIB/tailscaled.state ] || [ -e "$STATE" ]; then
    say "the image holds another machine's state: wiping it"
    stop_image
    rm -rf ${LIB:?}/* /var/lib/meshd-node/* "${ETC:?}"/*
    ! [ -e $LIB/tailscaled.state ] || give_up "cannot wipe $LIB"
  fi
  printf '%s\n' "$MACHINE" >"$MARK.new" && mv "$MARK.new" "$MARK" || give_up "cannot write $MARK"
  sync "$MARK" 2>/dev/null  #: systemd
  :  #: systemd
}

main() {
  mkdir -p $ETC ${PYZ%/*} ${MARK%/*}
  chmod 0700 $ETC
  who_am_i >$ETC/who.log 2>&1  #: gang
  say "stage 1 on $MACHINE"
  # loads the GPU driver in the background
  nvidia-smi -L >/dev/null 2>&1 &  #: systemd
  forget_image
  # This script may be in a file, and holds keys: only root may read it.
  [ ! -f "$0" ] || chmod go= "$0"  #: systemd
  right_kind
  if ! was_node; then
    printf '%s\n' @JOIN@ >$JOIN.new && mv $JOIN.new $JOIN  #: single
    printf '%s\n' @JOIN@ | sed "s|%MACHINE%|$MACHINE|;s|%ID%|$ID|" >$JOIN.new &&  #: gang
      mv $JOIN.new $JOIN  #: gang
  fi
  all_there || install_missing
  start_tailscaled
  rm -f $ETC/online
  was_node || begin_fetch
  join_tailnet
  : >$ETC/online
  [ -n @KEEP_KEY@ ] || rm -f "$KEY"
  say "on the tailnet as $MACHINE"
  if was_node; then
    say "a node already: starting its agent"
    start_agent
    return
  fi
  # A head that is away, maybe for a restart, is no fault of this machine. A head that is up ends unwanted machines.
  try=1 since=$(up_s)
  while wait "$fetch"; rc=$?; [ "$rc" != 0 ]; do
    say "cannot get the node agent (try $try): $(tail -n 1 $ETC/fetch.log)"
    [ "$rc" != 3 ] || give_up "meshd was upgraded meanwhile"
    # shellcheck disable=SC2170  # rendered as a number
    [ $(($(up_s) - since)) -lt @DEAD_MAN_S@ ] || give_up "no answer from the head"
    [ "$try" -gt 4 ] || sleep $((try * 2))
    [ "$try" -lt 5 ] || sleep 10
    try=$((try + 1))
    begin_fetch
  done
  start_agent  #: container
  say "the node agent is started"
}

main
