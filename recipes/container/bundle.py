#!/usr/bin/env python3
"""Fits an unpacked image (an OCI bundle, as umoci makes it) to `srun --container`: see unpack.sh.

    ./bundle.py BUNDLE [DIRECTORY...]

In the container you are yourself, with your home, the node's network, its devices (GPUs, /dev/shm), its /etc/hosts, and
each DIRECTORY at the same path. It adds the node's NVIDIA driver, if there is one.
"""

import json
import os
import pwd
import subprocess
import sys

FILES = ("/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/etc/group")
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4")


def bind(path, *options):
    """A mount of a file or directory of the node at the same path."""
    return {"destination": path, "source": path, "type": "bind", "options": ["rbind", *options]}


def driver_files():
    """NVIDIA's program and libraries on this node. They belong to its kernel's driver: no image can have them."""
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    libraries = [line.split()[-1] for line in cache.splitlines() if line.split()[:1] and line.split()[0] in DRIVER]
    return [path for path in [*libraries, "/usr/bin/nvidia-smi"] if os.path.exists(path)]


def fitted(config, home, directories):
    """The bundle's config.json for Slurm, which puts in the program, its arguments and the job's environment."""
    uid, gid = os.getuid(), os.getgid()
    process = config["process"]
    process.update(terminal=False, cwd=home, user={"uid": uid, "gid": gid}, capabilities={}, rlimits=[])
    # The image's variables win over the job's. Its PATH should; but HOME is yours.
    process["env"] = [one for one in process["env"] if one.partition("=")[0] not in ("HOME", "TERM")]
    config["linux"]["uidMappings"] = [{"containerID": uid, "hostID": uid, "size": 1}]
    config["linux"]["gidMappings"] = [{"containerID": gid, "hostID": gid, "size": 1}]
    # Not a host name, network, process table and memory of its own: MPI and PyTorch look for each other there.
    config["linux"]["namespaces"] = [{"type": "mount"}, {"type": "user"}]
    config.pop("hostname", None)
    read_only = [*FILES, *driver_files()]
    config["mounts"] = [
        *(bind(path) for path in ("/proc", "/sys", "/dev", "/tmp")),
        *(bind(path, "ro") for path in read_only),
        *(bind(path) for path in [home, *directories]),
    ]
    return config


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    bundle, *directories = map(os.path.abspath, sys.argv[1:])
    path = os.path.join(bundle, "config.json")
    with open(path) as file:
        config = json.load(file)
    config = fitted(config, pwd.getpwuid(os.getuid()).pw_dir, directories)
    with open(path, "w") as file:
        json.dump(config, file, indent=2)


if __name__ == "__main__":
    main()
