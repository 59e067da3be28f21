"""Who comes without a key waits for the host; who came in by an invite goes with it. The real commands."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protos.invite import Invite
from tests.cluster import COMMAND, Cluster, Process

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def host_says(cluster: Cluster, *arguments: str) -> str:
    """What a command of the host prints."""
    env = {**os.environ, "HOME": str(cluster.folder), "XDG_STATE_HOME": str(cluster.folder / "state")}
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=240, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(process: Process) -> str:
    """Its last words."""
    assert process.popen.wait(240) == 1
    return process.err.read_text()


def test_allowed_denied_and_revoked(tiny: Path, tmp_path: Path) -> None:
    with Cluster(tiny, tmp_path, peers=0, threads=1) as cluster:
        knocking = ["--memory", "1GB", "--threads", "1", "--json"]
        without_key = replace(cluster.invite, key="")
        attic = cluster.start("attic", "join", "--name", "attic", *knocking, invite=without_key)
        cellar = cluster.start("cellar", "join", "--name", "cellar", *knocking, invite=without_key)
        for process in (attic, cellar):
            assert "waiting for the host" in str(process.event("asking")["text"])
        assert "attic waits to be let in as a peer, from 127.0.0.1" in host_says(cluster, "peers")
        host_says(cluster, "peers", "deny", "cellar")
        assert "the host did not let you in" in ended(cellar)
        host_says(cluster, "peers", "allow", "attic")
        attic.event("ready")

        made: dict[str, Any] = json.loads(host_says(cluster, "invite", "client", "--name", "phone", "--json"))
        phone = cluster.start("phone", "serve", "--port", "0", "--json", invite=Invite.parse(made["invites"][0]))
        phone.event("listening")
        rows = map(json.loads, host_says(cluster, "invite", "list", "--json").splitlines())
        assert {row["name"]: (row["side"], row["state"], row["guests"]) for row in rows}.items() >= {
            ("attic", ("peer", "used up", 1)),
            ("phone", ("client", "open", 0)),
        }
        host_says(cluster, "invite", "revoke", "attic")
        assert "revoked this invite" in ended(attic)
        assert "no peers" in host_says(cluster, "peers")
