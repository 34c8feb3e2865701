#!/bin/sh
# What a careful administrator would script to make a fresh machine a node, without meshd. It is the machine's user data,
# so it runs at the same moment of the boot as meshd's stage 1. Everything it needs is in place beforehand: an auth key,
# a login on the head without a password, a line of its own for the slot in the head's slurm.conf and gres.conf. It knows
# which GPU it was rented with, and looks at none. slurmctld learns of the line by a reconfigure, which is waited for.
set -eu
NODE=@NODE@
HEAD=@HEAD@
umask 077
mark() { printf '%s %s\n' "$1" "$(date +%s.%N)" >>/run/byhand.marks; }
mkdir -p /root/.ssh
cat >/root/.ssh/id_ed25519 <<'KEY'
@SSH_KEY@
KEY
printf '%s\n' '@AUTH_KEY@' >/root/tailscale.key
# One connection for both questions to the head.
head() { ssh -o StrictHostKeyChecking=no -o ControlMaster=auto -o ControlPath=/run/ssh-%C -o ControlPersist=60 "root@$HEAD" "$@"; }
until tailscale status --json --peers=false >/dev/null 2>&1; do sleep 0.05; done

mark up
tailscale up --login-server=@LOGIN_SERVER@ --auth-key=file:/root/tailscale.key "--hostname=$NODE" --accept-dns=false --timeout=30s
address=$(tailscale ip -4)
mark online

head cat /etc/munge/munge.key >/etc/munge/munge.key
chown munge:munge /etc/munge/munge.key
chmod 0400 /etc/munge/munge.key
mark key
systemctl start munge
munge -n | unmunge >/dev/null
mark munge

shape=$(slurmd -C | sed -n 's/.*\(CPUs=[0-9]* Boards=[0-9]* SocketsPerBoard=[0-9]* CoresPerSocket=[0-9]* ThreadsPerCore=[0-9]*\).*/\1/p')
head "cp /etc/slurm/hand.conf /etc/slurm/hand.conf.old &&
  sed -i 's/^NodeName=$NODE .*/NodeName=$NODE NodeAddr=$address $shape RealMemory=1024 Gres=gpu:h100:1 State=UNKNOWN/' /etc/slurm/hand.conf &&
  scontrol reconfigure && scontrol ping >/dev/null" || exit 1
mark reconfigured

grep -q ' head$' /etc/hosts || printf '%s head\n' "$HEAD" >>/etc/hosts
mkdir -p /var/spool/slurmd /var/log/slurm
systemd-run --quiet --unit=byhand-slurmd slurmd -D --conf-server "$HEAD:6817" -N "$NODE"
mark slurmd
until head sinfo -h -n "$NODE" -o %T | grep -q '^idle$'; do sleep 0.1; done
mark idle
