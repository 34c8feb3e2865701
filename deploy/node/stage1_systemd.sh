# shellcheck shell=sh disable=SC2034
# The part of stage 1 for machines with systemd.
NEEDS='tailscale python3' PROXY=

right_kind() { [ -d /run/systemd/system ] || give_up "no systemd here"; }

all_there() { tailscale_ok && command -v python3 >/dev/null; }

start_agent() { systemctl --no-block start meshd-node; }

stop_services() { systemctl stop meshd-node slurmd tailscaled 2>/dev/null; }

# Whatever started it.
stop_tailscaled() {
  for p in /proc/[0-9]*; do
    [ "$(cat "$p/comm" 2>/dev/null)" = tailscaled ] || continue
    kill "${p#/proc/}"
    n=0
    while [ -d "$p" ] && [ $((n += 1)) -lt 400 ]; do nap; done
  done
}

run_tailscaled() { systemctl --no-block enable --now tailscaled >/dev/null 2>&1; }

give_back() {
  [ -n @POWER_OFF@ ] && [ ! -e "$STATE" ] || return
  say "powering off in 10 s"
  sleep 10
  systemctl poweroff 2>/dev/null || poweroff -f
}
