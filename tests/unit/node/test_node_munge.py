"""munge's key and credentials, and each kind of failure."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from meshd.errors import CommandNotFound, CommandTimeout, MungeError
from meshd.munge import key
from meshd.munge.client import AT_ONCE, MungeClient
from meshd.runtime.run import Result


class Munged:
    """Ends each call as told."""

    def __init__(
        self, returncode: int = 0, stdout: str = "", stderr: str = "", raises: Exception | None = None
    ) -> None:
        self.result = (returncode, stdout, stderr)
        self.raises = raises
        self.calls: list[tuple[tuple[str, ...], bytes | None]] = []

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Result:
        self.calls.append((tuple(argv), stdin))
        if self.raises is not None:
            raise self.raises
        return Result(tuple(argv), *self.result)


async def test_encode_and_decode() -> None:
    munged = Munged(stdout="MUNGE:AwQD:\n")
    assert await MungeClient(munged).encode() == "MUNGE:AwQD:"
    await MungeClient(munged).decode("MUNGE:AwQD:")
    assert munged.calls[-1] == (("unmunge", "-n"), b"MUNGE:AwQD:")
    assert await MungeClient(munged).exchange("MUNGE:AwQD:") == "MUNGE:AwQD:"


async def test_a_crowd_of_nodes_is_served_a_few_at_a_time() -> None:
    at_once = [0, 0]

    async def slow(argv: Sequence[str], **_: object) -> Result:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(0)
        at_once[0] -= 1
        return Result(tuple(argv), 0, "MUNGE:AwQD:", "")

    client = MungeClient(slow)
    answers = await asyncio.gather(*(client.exchange("MUNGE:AwQD:") for _ in range(100)))
    assert answers == ["MUNGE:AwQD:"] * 100
    assert at_once == [0, AT_ONCE]


@pytest.mark.parametrize(
    ("munged", "words"),
    [
        (Munged(14, stderr="unmunge: Error: Invalid credential"), "same munge key"),
        (Munged(15, stderr="unmunge: Error: Expired credential"), "expired"),
        (Munged(16, stderr="unmunge: Error: Rewound credential"), "rewound"),
        (Munged(17, stderr="unmunge: Error: Replayed credential"), "replayed"),
        (Munged(6, stderr='munge: Error: Failed to access "/run/munge/munge.socket.2": No such file'), "does not run"),
        (Munged(1, stderr="munged: Error: Keyfile is insecure: should not be readable by group"), "insecure"),
        (Munged(1), "no message"),
        (Munged(raises=CommandNotFound("unmunge")), "install munge"),
        (Munged(raises=CommandTimeout(["unmunge"], 10)), "does not answer"),
    ],
)
async def test_each_failure_has_its_own_words(munged: Munged, words: str) -> None:
    with pytest.raises(MungeError, match=words):
        await MungeClient(munged).decode("MUNGE:AwQD:")


async def test_what_is_no_credential_never_reaches_munged() -> None:
    munged = Munged()
    for text in ("", "hello", "MUNGE:" + "A" * 9000 + ":", "MUNGE:a b:"):
        with pytest.raises(MungeError):
            await MungeClient(munged).decode(text)
    assert munged.calls == []


def test_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = key.make_key(lambda count: b"k" * count)
    path = tmp_path / "munge.key"
    key.write_key(path, made)
    assert path.stat().st_mode & 0o777 == 0o400
    assert len(path.read_bytes()) == 1024
    assert key.read_key(path) == made
    assert len(key.fingerprint(made)) == 16
    assert "kkk" not in repr(made)
    path.chmod(0o644)
    with pytest.raises(MungeError, match="0644"):
        key.read_key(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "munge_key").write_bytes(b"c" * 1024)
    assert key.read_key().get_secret_value() == b"c" * 1024
    (tmp_path / "munge_key").write_bytes(b"short")
    with pytest.raises(MungeError, match="5"):
        key.read_key()
    with pytest.raises(MungeError, match="other"):
        key.read_key(None, "other")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(MungeError):
        key.read_key()
    with pytest.raises(MungeError, match="nothing"):
        key.read_key(tmp_path / "nothing")
