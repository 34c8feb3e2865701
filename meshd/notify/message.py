"""What a notice says, as JSON, for Slack and as mail. PURE.

Words of nodes and clouds are cleaned here once more: one line, no control characters, no secrets, and bounded.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any, Final

from meshd import __version__
from meshd.plaintext import counted, plain, plain_text
from meshd.plan.notices import Alert, Item, Notice, State
from meshd.redaction import redact

SCHEMA_VERSION: Final = 1
ITEMS_MAX: Final = 20
TEXT_MAX: Final = 500
DISCORD_MAX: Final = 1900
"""Characters of a message; Discord refuses more than 2,000."""
NTFY_MAX_B: Final = 4000
"""ntfy shows up to 4,096 bytes as a message, and makes a file of more."""
SIGNATURE: Final = "X-Meshd-Signature"
DELIVERY: Final = "X-Meshd-Delivery"
_WORDS: Final = {State.BEGUN: "", State.GROWN: "more of: ", State.STILL: "still: ", State.RESOLVED: "resolved: "}


@dataclass(frozen=True, slots=True)
class Message:
    """A notice for one receiver, or a test.

    Attributes:
        cluster: its name.
        receiver: the receiver's.
        notice: what is told.
        test: somebody tries whether messages arrive.
    """

    cluster: str
    receiver: str
    notice: Notice
    test: bool = False

    @property
    def title(self) -> str:
        """One line."""
        if self.test:
            return f"[{self.cluster}] test of notifications"
        begun = [item for item in self.notice.items if item.state is not State.RESOLVED]
        over = len(self.notice.items) - len(begun)
        if not begun:
            codes = self.notice.items[0].alert.code if over == 1 else counted(over, "problem")
            return f"[{self.cluster}] resolved: {codes}"
        worst = begun[0].alert
        where = f" ({worst.machine or worst.pool})" if worst.machine or worst.pool else ""
        more = f" and {len(begun) - 1} more" if len(begun) > 1 else ""
        return _clean(f"[{self.cluster}] {worst.severity}: {worst.code}{where}{more}", 150)

    def body(self) -> bytes:
        """The plain webhook's JSON."""
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "id": self.notice.id,
            "kind": "test" if self.test else "problems",
            "cluster": self.cluster,
            "receiver": self.receiver,
            "at": _utc(self.notice.at),
            "title": self.title,
            "problems": [_json(item) for item in self.notice.items[:ITEMS_MAX]],
            "more": max(0, len(self.notice.items) - ITEMS_MAX),
        }
        return json.dumps(document, ensure_ascii=True).encode()

    def slack(self) -> bytes:
        """The JSON that Slack and Mattermost read. Nothing in it mentions anybody."""
        text = self.text().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@\u200b")
        return json.dumps({"text": text}, ensure_ascii=True).encode()

    def discord(self) -> bytes:
        """The JSON that Discord reads. Nothing in it mentions anybody."""
        content = plain_text(self.text(), DISCORD_MAX)
        return json.dumps({"content": content, "allowed_mentions": {"parse": []}}, ensure_ascii=True).encode()

    def ntfy(self) -> tuple[bytes, dict[str, str]]:
        """The text that ntfy reads, and its headers."""
        text = self.text().removeprefix(self.title).strip().encode()[:NTFY_MAX_B].decode("utf-8", "ignore")
        worst = next((item.alert for item in self.notice.items if item.state is not State.RESOLVED), None)
        urgent = worst is not None and worst.severity == "error" and not self.test
        title = self.title.encode("ascii", "replace").decode()
        return text.encode(), {"Title": title, "Priority": "high" if urgent else "default"}

    def posted(self, form: str) -> tuple[bytes, dict[str, str]]:
        """The body of a webhook's POST in one of the forms of the settings, and headers that go with it."""
        if form == "ntfy":
            text, headers = self.ntfy()
            return text, {"Content-Type": "text/plain; charset=utf-8", **headers}
        body = {"slack": self.slack, "discord": self.discord}.get(form, self.body)()
        return body, {"Content-Type": "application/json"}

    def mail(self, sender: str, recipients: tuple[str, ...]) -> EmailMessage:
        """The mail. Its id is the notice's, so that a mail program shows a repeated delivery once."""
        mail = EmailMessage(policy=SMTP)
        mail["From"] = sender
        mail["To"] = ", ".join(recipients)
        mail["Subject"] = self.title
        mail["Date"] = format_datetime(self.notice.at)
        mail["Message-ID"] = f"<{self.notice.id}.{self.cluster}@{sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail["X-Mailer"] = f"meshd/{__version__}"
        mail.set_content(self.text())
        return mail

    def text(self) -> str:
        """For people: the title, and for each problem what happened, where, since when, and what to do."""
        if self.test:
            by = f"This is a test of the receiver {self.receiver}. There is nothing to do."
            return f"{self.title}\n\n{by}\n"
        parts = [self.title, *("\n".join(_lines(item)) for item in self.notice.items[:ITEMS_MAX])]
        if len(self.notice.items) > ITEMS_MAX:
            parts.append(f"and {len(self.notice.items) - ITEMS_MAX} more: `meshctl status`")
        return "\n\n".join(parts) + "\n"


def signature(secret: str, at: datetime, body: bytes) -> str:
    """The value of SIGNATURE: when it was signed, and HMAC-SHA256 over `TIME.BODY`, as in `t=1767323045,v1=HEX`."""
    seconds = str(int(at.timestamp()))
    digest = hmac.new(secret.encode(), seconds.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"


def bounded(alert: Alert) -> Alert:
    """The alert with its words cleaned and cut, as it is remembered."""
    return Alert(
        alert.key, alert.code, alert.severity, _clean(alert.text), _clean(alert.cure), alert.since,
        _clean(alert.pool, 80), _clean(alert.machine, 80), alert.count,
    )  # fmt: skip


def _json(item: Item) -> dict[str, Any]:
    alert = bounded(item.alert)
    return {
        "state": item.state.value,
        "code": alert.code,
        "severity": alert.severity,
        "text": alert.text,
        "cure": alert.cure,
        "pool": alert.pool,
        "machine": alert.machine,
        "count": alert.count,
        "since": _utc(item.at),
        "ended_at": _utc(item.ended_at) if item.ended_at else None,
    }


def _lines(item: Item) -> list[str]:
    alert = bounded(item.alert)
    about = " ".join(f"{name} {word}" for name, word in (("pool", alert.pool), ("machine", alert.machine)) if word)
    lines = [f"{_WORDS[item.state]}{alert.severity}: {alert.text}"]
    if alert.count > 1:
        lines.append(f"and {alert.count - 1} more of this kind: `meshctl status`")
    if about:
        lines.append(f"where: {about}")
    ended = f", until {item.ended_at:%Y-%m-%d %H:%M} UTC" if item.ended_at else ""
    lines.append(f"since: {item.at:%Y-%m-%d %H:%M} UTC{ended}")
    if alert.cure and item.state is not State.RESOLVED:
        lines.append(f"what to do: {alert.cure}")
    lines.append(f"code: {alert.code}")
    return lines


def _utc(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _clean(text: str, most: int = TEXT_MAX) -> str:
    return plain(redact(text), most)
