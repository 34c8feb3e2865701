#!/bin/sh
# Stands in for the start script of RunPod's images, which starts SSH where it is asked for, and never ends.
[ -z "${PUBLIC_KEY:-}" ] || {
    mkdir -p /root/.ssh /run/sshd
    (umask 077 && printf '%s\n' "$PUBLIC_KEY" >>/root/.ssh/authorized_keys)
    ssh-keygen -A && /usr/sbin/sshd
}
exec sleep infinity
