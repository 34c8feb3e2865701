# shellcheck shell=sh disable=SC2034,SC2154
# What stage 1 and an invitation share: the login on the tailnet, the fetch of the node agent.
# It needs: MACHINE (its hostname on the tailnet), LOGIN, ETC (a directory of root's), KEY, TRIES, PROXY; JOIN (a
# JSON file: heads, port, token, sha256), PYZ and VERB (the agent's file, and the first thing that it does); and the
# functions say, give_up, all_there, run_tailscaled.
start_tailscaled() {
  [ -S /run/tailscale/tailscaled.sock ] && status >/dev/null && return
  run_tailscaled
  n=0
  until status >/dev/null; do
    [ $((n += 1)) -lt 600 ] || give_up "tailscaled does not start"
    nap
  done
}

status() { timeout 10 tailscale status --json --peers=false 2>/dev/null; }

has() { printf '%s' "$S" | grep -q "$1"; }

# Neither exit code 0 of `up` nor Running prove anything: control must show us online, without a login error.
online() {
  S=$(status)
  has '"BackendState": "Running"' && has '"Online": true' && ! has 'login error'
}

up() {
  set -- up "$@" "--hostname=$MACHINE" --accept-dns=@ACCEPT_DNS@ --timeout=30s
  [ -z "$LOGIN" ] || set -- "$@" "--login-server=$LOGIN"
  tailscale "$@" 2>&1
}

wait_online() {
  n=0
  until online; do
    [ $((n += 1)) -lt "$1" ] || return 1
    # waiting does not help a refused key
    [ "$n" -le 40 ] || ! has 'login error' || return 1
    nap
  done
}

# One login, if control wants one. Use the auth key only without a node key, or after it expired: control refuses a dead
# auth key even from a machine with a good login. No answer from tailscaled does not mean "no node key".
login() {
  if [ -z "$S" ] || has '"BackendState": "NoState"' && has '"HaveNodeKey": true'; then
    :
  elif ! has '"HaveNodeKey": true' || has '"BackendState": "NeedsLogin"'; then
    [ -s "$KEY" ] || printf '%s\n' @AUTH_KEY@ >"$KEY"
    up "--auth-key=file:$KEY"
  elif has 'login error'; then
    # a good login got a dead key: without a key the dead one would stay, and an empty key removes it
    up --auth-key=file:/dev/null
  elif has '"BackendState": "Stopped"'; then
    # without any flag: it keeps all earlier settings
    timeout 30 tailscale up 2>&1
  fi
}

join_tailnet() {
  try=1
  while :; do
    n=0
    S=$(status)
    while { [ -z "$S" ] || has '"BackendState": "NoState"'; } && [ $((n += 1)) -lt 200 ]; do nap; S=$(status); done
    said=$(login)
    wait_online 300 && return
    why=$(printf '%s' "$S" | grep -i 'login error' | head -n 1 | sed 's/^[ "]*//')
    why=${why:-$(printf '%s' "$said" | tail -n 1)}
    say "not on the tailnet (try $try of $TRIES): ${why:-it is not online}"
    # A dead key stays dead: two tries. For all other failures: TRIES.
    case "$why $said" in
      *'invalid key'* | *'auth key'* | *authkey*) most=2 hint='is the auth key expired, revoked or used up?' ;;
      *) most=$TRIES hint="is ${LOGIN:-https://controlplane.tailscale.com} reachable from here?" ;;
    esac
    [ "$try" -lt "$most" ] || give_up "the tailnet does not take this machine: $hint"
    sleep $((2 * (try += 1)))
  done
}

# Fetches the agent over the tailnet, checks its digest and lets it install itself. Starts before the tailnet is up and
# waits for it: python takes as long to start as the tailnet to come up.
begin_fetch() {
  fetch_agent >$ETC/fetch.log 2>&1 &
  fetch=$!
}

fetch_agent() {
  # in the place of its shell: who ends `fetch` ends it
  # shellcheck disable=SC2086  # empty, or one word
  exec python3 - $ETC/online $JOIN $PYZ $VERB $PROXY <<'PY'
# the agent imports some of these: they load while the tailnet comes up
import argparse, dataclasses, hashlib, http.client, json, os, subprocess, sys, time, zipfile
online, join, path, verb, *proxy = sys.argv[1:]
parent = os.getppid()
while not os.path.exists(online):
    if os.getppid() != parent:
        sys.exit(1)
    time.sleep(0.005)
c = json.load(open(join))
why = "no head"
for head in c["heads"]:
    try:
        link = http.client.HTTPConnection(head, c["port"], timeout=20)
        if proxy:  #: container
            link = http.client.HTTPConnection(proxy[0], 1055, timeout=20)  #: container
            link.set_tunnel("[%s]" % head if ":" in head else head, c["port"])  #: container
        link.request("GET", "/v1/agent", headers={"Authorization": "Bearer " + c["token"]})
        answer = link.getresponse()
        data = answer.read(4194304)
        if answer.status != 200:
            raise OSError("%d %s" % (answer.status, answer.reason))
    except (OSError, http.client.HTTPException) as e:
        why = "%s: %s" % (head, e)
        continue
    if hashlib.sha256(data).hexdigest() != c["sha256"]:
        print(head + ": unexpected agent")
        sys.exit(3)
    with open(path + ".new", "wb") as file:
        file.write(data)
        file.flush()  #: systemd
        os.fsync(file.fileno())  #: systemd
    os.rename(path + ".new", path)
    lib = os.path.dirname(path) + "/lib"
    zipfile.ZipFile(path).extractall(lib)
    sys.path[:0] = [lib]
    from meshd_node.main import main
    sys.exit(main([verb]))
sys.exit(why)
PY
}
