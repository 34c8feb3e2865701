"""A problem and its end arrive as mails at Debian's Postfix, over STARTTLS, and lie in a user's mailbox."""

from __future__ import annotations

import mailbox
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import closing
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.sandbox import cache, images, proc
from tests.e2e.lab import USER, Lab

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/unit/notify has the SMTP server of a library
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

DEBS = "/root/mail-debs"
CERT = "/etc/postfix/own.pem"
OF_USER = f"{USER}@mail.lab"
RECEIVER = f"""
[notify.ops]
mail_to = ["{OF_USER}"]
mail_from = "meshd@mail.lab"
smtp_server = "mail.lab"
smtp_port = 25
smtp_tls = "starttls"
ca_file = "{CERT}"
min_severity = "error"
after_s = 0
group_s = 0
resolved_after_s = 5
"""
POSTFIX = f"""
export DEBIAN_FRONTEND=noninteractive
grep -q mail.lab /etc/hosts || echo '127.0.0.1 mail.lab' >>/etc/hosts
dpkg --install --force-confnew {DEBS}/*.deb
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=mail.lab -addext subjectAltName=DNS:mail.lab \
    -addext keyUsage=digitalSignature,keyEncipherment,keyCertSign -keyout /etc/postfix/own.key -out {CERT}
chmod 644 {CERT}
postconf -e myhostname=mail.lab mydestination=mail.lab inet_interfaces=loopback-only inet_protocols=ipv4 \
    smtpd_tls_cert_file={CERT} smtpd_tls_key_file=/etc/postfix/own.key smtpd_tls_security_level=encrypt \
    smtpd_tls_received_header=yes mynetworks=127.0.0.0/8 mailbox_command=
systemctl restart postfix
"""


async def with_what_it_needs(package: str) -> list[Path]:
    """The newest archive of a package and of all that it depends on, as far as the base of machines lacks it."""
    debs = await images.fetch_packages(
        await images.ensure_base("trixie"), "trixie", [package], cache.log_file(f"image-{package}")
    )
    found: dict[str, Path] = {}
    wanted = [package]
    while wanted:
        name = wanted.pop()
        there = sorted(debs.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
        if name in found or not there:
            continue
        found[name] = there[-1]
        shown = await proc.run(["dpkg-deb", "--field", there[-1], "Depends", "Pre-Depends"], timeout_s=30)
        wanted += re.findall(r"[a-z0-9][a-z0-9+.-]+", re.sub(r"\([^)]*\)|^(Pre-)?Depends:", "", shown.text, flags=re.M))
    return list(found.values())


@pytest_asyncio.fixture(loop_scope="session")
async def posted(lab: Lab) -> AsyncIterator[Lab]:
    """Postfix on the head, and a receiver whose mails go to it."""
    folder = await lab.head.root() / DEBS.lstrip("/")
    folder.mkdir()
    for deb in await with_what_it_needs("postfix"):
        shutil.copy(deb, folder / deb.name)
    there = (await lab.head.run("dpkg-query", "-Wf", "${Package}\n")).text.split()
    for deb in list(folder.iterdir()):
        if deb.name.partition("_")[0] in there:
            deb.unlink()
    new = [deb.name.partition("_")[0] for deb in folder.iterdir()]
    try:
        await lab.head.shell(POSTFIX, timeout_s=240)
        assert await lab.write_settings(lab.settings_with() + RECEIVER) == 0
        yield lab
        await lab.write_settings(lab.settings_with())
    finally:
        await lab.head.run("dpkg", "--purge", *new, timeout_s=120, check=False)
        await lab.head.shell(f"rm -rf {DEBS} /etc/postfix /var/mail/{USER}; sed -i '/ mail.lab$/d' /etc/hosts")


async def mails(lab: Lab, folder: Path) -> list[Message]:
    """What lies in the user's mailbox."""
    box = folder / "box"
    box.write_bytes((await lab.head.run("cat", f"/var/mail/{USER}", check=False)).stdout)
    with closing(mailbox.mbox(box)) as found:
        return list(found)


async def test_a_problem_and_its_end_lie_in_the_mailbox(posted: Lab, tmp_path: Path) -> None:
    tried = await posted.ask("notify", "test")
    assert [(row["receiver"], row["ok"]) for row in tried["rows"]] == [("ops", True)], tried
    assert "queued as" in tried["rows"][0]["text"], "Postfix's own answer"
    await posted.ask("freeze", "--reason", "work on the cloud")

    async def arrived() -> list[Message]:
        found = await mails(posted, tmp_path)
        return found if len(found) == count else []

    count = 2
    await posted.until(arrived, "the test and the freeze have arrived")
    await posted.ask("thaw")
    count = 3
    test, begun, over = await posted.until(arrived, "the end of it has arrived")

    for mail in (test, begun, over):
        assert (mail["From"], mail["To"], mail["Delivered-To"]) == (
            "meshd@mail.lab",
            f"{USER}@mail.lab",
            f"{USER}@mail.lab",
        )
        assert mail["Return-Path"] == "<meshd@mail.lab>"
        assert (mail["Auto-Submitted"], mail["X-Mailer"].partition("/")[0]) == ("auto-generated", "meshd")
        assert mail["MIME-Version"] == "1.0" and mail.get_content_type() == "text/plain"
        assert parsedate_to_datetime(mail["Date"]).tzinfo is not None
        assert re.fullmatch(r"<\S+@mail\.lab>", mail["Message-ID"])
        received = " ".join(mail["Received"].split())
        assert "with ESMTPS" in received and "using TLSv1.3" in received, received
        assert f"for <{OF_USER}>" in received
    assert len({mail["Message-ID"] for mail in (test, begun, over)}) == 3
    texts = [mail.get_payload(decode=True).decode() for mail in (test, begun, over)]  # type: ignore[union-attr]
    assert all(
        mail["Subject"] and mail["Subject"] in text for mail, text in zip((test, begun, over), texts, strict=True)
    )
    assert "meshctl thaw" in texts[1] and "work on the cloud" in texts[1]
    assert not {"notify_fails"} & await posted.problem_codes()
