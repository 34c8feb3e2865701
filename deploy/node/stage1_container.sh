# shellcheck shell=sh disable=SC2034
# The part of stage 1 for containers. On our own image s6 supervises all services, and stage 1 is one of them. On another
# image stage 1 is the first process: in the end it becomes the entry point of a pod.
NEEDS='tailscale s6 python3'

# Without a TUN device, or CAP_NET_ADMIN (bit 12), tailscaled runs in user space, and its HTTP proxy leads to the tailnet.
PROXY=127.0.0.1 RUNS=
if grep -q 'CapEff:.*[13579bdf]...$' /proc/self/status && { : <>/dev/net/tun; } 2>/dev/null; then PROXY=; fi

# This script is in a file, and holds keys.
right_kind() {
  rm -f "$0"
  [ ! -d /run/systemd/system ] || give_up "systemd runs here"
}

all_there() { tailscale_ok && type s6-svc python3 >/dev/null 2>&1; }

# svc SERVICE OPTIONS: fails where s6 does not supervise
# shellcheck disable=SC2086  # several words
svc() { s6-svc $2 /run/meshd-pod/service/$1 2>/dev/null; }

start_agent() {
  svc meshd-node -u && return
  # s6 starts it again, with the same state
  stop_tailscaled
  exec /usr/lib/meshd/pod/entrypoint
}

# Only the one that this script started: no other can run here.
stop_tailscaled() {
  [ -n "$RUNS" ] || return
  kill "$RUNS"
  wait "$RUNS"
}

stop_services() { for s in slurmd meshd-node munged tailscaled; do svc $s '-wd -T 9999 -d'; done; }

run_tailscaled() {
  svc tailscaled -u && return
  mkdir -p /run/tailscale $LIB
  tailscaled --statedir=$LIB --socket=/run/tailscale/tailscaled.sock \
    ${PROXY:+--tun=userspace-networking --outbound-http-proxy-listen=$PROXY:1055} >/var/log/tailscaled.log 2>&1 &
  RUNS=$!
}

# A container that ends is started again by its cloud, with the same result, and costs as much. The head sees that it does
# not join, and ends it.
give_back() {
  say "waiting for the head to end this container"
  [ $$ = 1 ] || return
  trap exit TERM
  while :; do
    sleep 60 &
    wait
  done
}
