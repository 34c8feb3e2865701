#!/bin/sh
# Starts one machine with a kernel of its own.
#
# usage: launch_uml.sh CGROUP PROGRAM [ARGUMENT...]
#
# PROGRAM runs in the control group CGROUP (a path below the root of the unified hierarchy), and behind everything else
# that wants the host's processors: such a kernel computes where another one would wait.
set -eu
cgroup=$1
shift
[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] && mkdir -p "/sys/fs/cgroup/$cgroup" 2>/dev/null ||
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p "/sys/fs/cgroup/$cgroup"
echo $$ >"/sys/fs/cgroup/$cgroup/cgroup.procs"
# Not exec: whoever looks for the machine's first process looks below a process below this one.
nice -n 5 unshare --pid --fork --kill-child env "LD_PRELOAD=${1%/*}/xstate.so" "$@"
