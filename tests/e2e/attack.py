"""What a user tries on a node, with nothing but the standard library; prints what came of it as JSON.

Input, as JSON: the head's node API, tokens that the user may have from elsewhere, and the digests of files that he
looks for. It runs as a job, and as root where the test wants to see that root is not kept out.
"""

import hashlib
import http.client
import json
import os
import re
import socket
import stat
import sys

TRIES_S = 5.0
METADATA = "169.254.169.254"
SECRETS = re.compile(rb"tskey-[\w-]{10,}|\b[0-9a-f]{64}\b")
PLACES = ("/etc", "/opt", "/run", "/tmp", "/var", "/home", "/root", "/usr/local", "/proc", "/dev/shm")
READ_MAX_B = 1 << 20
WORDS_TRIED = 10


def ask(host, port, method, path, headers=None, body=None):
    """(status, text); status 0 when nobody answers."""
    link = http.client.HTTPConnection(host, port, timeout=TRIES_S)
    try:
        link.request(method, path, body, headers or {})
        answer = link.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        link.close()


def metadata():
    """What the metadata services say, by the vendor and the way."""
    status, token = ask(METADATA, 80, "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    google = "/computeMetadata/v1/instance/attributes/"
    flavor = {"Metadata-Flavor": "Google"}
    return {
        "token": (status, token),
        "ec2 v2": ask(METADATA, 80, "GET", "/latest/user-data", {"X-aws-ec2-metadata-token": token}),
        "ec2 v1": ask(METADATA, 80, "GET", "/latest/user-data"),
        "gce": ask(METADATA, 80, "GET", google + "startup-script", flavor),
        "gce all": ask(METADATA, 80, "GET", google + "?recursive=true", flavor),
    }


def files():
    """Every regular file that can be read, with its content; of /proc what tells of processes."""
    for place in PLACES:
        for folder, names, here in os.walk(place):
            if place == "/proc":
                names[:] = [name for name in names if folder == "/proc" and name.isdigit()]
                here = [name for name in here if name in ("environ", "cmdline", "maps")] if folder != "/proc" else []
            for name in here:
                path = os.path.join(folder, name)
                try:
                    if place != "/proc" and not stat.S_ISREG(os.lstat(path).st_mode):
                        continue
                    with open(path, "rb") as file:
                        yield path, file.read(READ_MAX_B)
                except OSError:
                    continue


def search(digests):
    """Secrets in what can be read: strings that look like one, and files with one of the digests."""
    words, found, count = {}, [], 0
    for path, data in files():
        count += 1
        for word in SECRETS.findall(data):
            words.setdefault(word.decode(), path)
        if hashlib.sha256(data).hexdigest() in digests:
            found.append(path)
    return {"words": words, "files": found, "read": count}


def node_api(host, port, tokens):
    """What the head's node API gives for each token."""
    calls = [
        ("GET", "/v1/needs", None),
        ("GET", "/v1/agent", None),
        ("POST", "/v1/join", "{}"),
        ("POST", "/v1/poll", "{}"),
        ("POST", "/v1/munge", '{"credential": "MUNGE:x:"}'),
    ]
    told = []
    for token in tokens:
        for method, path, body in calls:
            headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
            status, text = ask(host, port, method, path, headers, body)
            told.append([path, status, text[:300]])
    return told


def main():
    given = json.load(sys.stdin)
    result = {"uid": os.getuid(), "host": socket.gethostname(), "metadata": metadata()}
    if given.get("search"):
        result["search"] = search(set(given["digests"]))
    if given.get("head"):
        tokens = given["tokens"] + sorted(result["search"]["words"])[:WORDS_TRIED]
        result["node api"] = node_api(given["head"], given["port"], tokens)
    sys.stdout.write(json.dumps(result) + "\n")


main()
