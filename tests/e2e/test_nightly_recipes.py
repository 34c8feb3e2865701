"""The recipes that need more packages or disk than each run should: TensorFlow, and PyTorch in a container."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from deploy.sandbox import cache, images, wheels
from tests.e2e.lab import USER, Lab
from tests.e2e.recipes import Person
from tests.e2e.workplace import workplace

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # test_job_recipes does the same with smaller programs
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1200),
]

TENSORFLOW = "tensorflow-cpu==2.20.0"
LONG_S = 600.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def person(booted: Lab) -> AsyncIterator[Person]:
    async with workplace(booted, "large recipes") as someone:
        yield someone


async def test_tensorflow(person: Person, figure: Callable[[str], None]) -> None:
    store = cache.cache_root() / "wheels-tensorflow"
    store.mkdir(parents=True, exist_ok=True)
    await wheels.download([TENSORFLOW], store, await images.ensure_base("trixie"), cache.log_file("wheels-tensorflow"))
    home = person.lab.cluster.world.share / "home" / USER
    shutil.copytree(store, home / "wheels", dirs_exist_ok=True)
    await person.type(f"export TENSORFLOW={TENSORFLOW} PIP_FIND_LINKS=$HOME/wheels PIP_NO_COMPILE=1")
    began = time.monotonic()
    said = (await person.follow("tensorflow", timeout_s=LONG_S)).output("cat slurm")
    figure(f"recipe tensorflow: {time.monotonic() - began:.1f} s")
    shutil.rmtree(home / "wheels")
    ended = re.findall(r"^worker (\d): done at step 60, sum of all weights (\S+)$", said, re.M)
    assert sorted(rank for rank, _ in ended) == ["0", "1"], said
    assert len({weights for _, weights in ended}) == 1, f"the workers differ: {said}"
    assert len(re.findall(r"^worker \d of 2 on \S+$", said, re.M)) == 2, said
    await person.type("cd && rm -rf ~/env-tf")


PYTORCH = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output=ddp.out
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT USE_LIBUV=0
bundle=/tmp/$USER-torch
srun --ntasks-per-node=1 ~/container/unpack.sh ~/images:torch "$bundle" || exit
srun --kill-on-bad-exit --container="$bundle" sh -c 'cd ~/ddp
    RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID exec python3 train.py --epochs 1'
"""


async def test_pytorch_in_a_container(person: Person, figure: Callable[[str], None]) -> None:
    """The image's PyTorch, not the nodes'. The tasks find rank 0 by its node's name."""
    archive = await images.ensure_oci_image("trixie", torch=True)
    home = person.lab.cluster.world.share / "home" / USER
    shutil.copyfile(archive, home / "torch.tar")
    await person.type("cd && cp -r /usr/local/share/meshd/recipes/container ~/container")
    await person.type("cp -r /usr/local/share/meshd/recipes/pytorch-ddp ~/ddp && mkdir -p ~/ddp/checkpoints")
    await person.type("srun skopeo copy --quiet oci-archive:$HOME/torch.tar oci:images:torch", timeout_s=LONG_S)
    await person.lab.head.write(f"/home/{USER}/pytorch.sh", PYTORCH, "0755")
    began = time.monotonic()
    await person.submit("sbatch pytorch.sh", timeout_s=LONG_S)
    figure(f"PyTorch in a container, with unpacking: {time.monotonic() - began:.1f} s")
    said = (await person.type("cat ddp.out")).output
    assert len(re.findall(r"^rank \d of 2 on \S+: cpu$", said, re.M)) == 2, said
    assert re.search(r"^step \d+: accuracy 0\.\d+$", said, re.M), said
