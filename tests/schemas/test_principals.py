"""A token says who its holder is and what it may; only who has the owner's key can make one."""

from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.principals import (
    BY_OWNER,
    Principal,
    identify_token,
    make_principal,
    make_token,
    split_token,
)
from rollbus.schemas.signing import Signing, make_signature
from tests.builders import make_reward, make_started
from tests.streams.replay.memory import Raw

ROOT = b"the-key-of-all-principals"
TOPIC = "n.episode-events"
AGENT = make_principal("agent-7", ["record"])
EVENT, REWARD = encode(make_started()), encode(make_reward())


def signing(**fields: Any) -> Signing:
    return Signing.model_validate({"owner": "the-owners-own-key", "principals": ROOT.decode(), **fields})


def written_by(token: str, data: bytes, *, timestamp: int = 0) -> Raw:
    head, secret = split_token(token) or ("", b"")
    return Raw(0, b"e1", data, timestamp, tuple(make_signature(head, secret, TOPIC, b"e1", data)))


def test_a_token_names_its_principal_and_no_other_key_makes_it() -> None:
    token = make_token(ROOT, AGENT)
    assert identify_token([ROOT], token) == AGENT
    assert identify_token([b"before", ROOT], token) == AGENT, "a key that is being replaced"
    assert identify_token([b"another key"], token) is None
    for wrong in ("", "none", "rb.agent-7.r.1", token[:-1], token.replace(".r.", ".fr."), token.replace(".1.", ".2.")):
        assert identify_token([ROOT], wrong) is None


def test_the_owners_key_opens_no_door() -> None:
    for name in ("owner", "operator", "proxy"):
        with pytest.raises(ConfigurationError, match="rollbus's own"):
            make_principal(name, ["record"])
    with pytest.raises(ConfigurationError, match="may record and feedback"):
        make_principal("agent-7", ["train"])
    internal = make_token(ROOT, Principal("proxy", frozenset({"record"}), BY_OWNER))
    assert identify_token([ROOT], internal) is None


def test_a_record_counts_as_its_principals_if_the_principal_may_write_it() -> None:
    token = make_token(ROOT, AGENT)
    assert signing().signer_of(TOPIC, written_by(token, EVENT)) == "agent-7"
    assert signing().signer_of(TOPIC, written_by(token, REWARD)) is None, "it may not report rewards"
    assert signing(principals="the-key-of-somebody-else").signer_of(TOPIC, written_by(token, EVENT)) is None
    assert signing(principals=()).signer_of(TOPIC, written_by(token, EVENT)) is None


def test_an_ended_token_counts_for_earlier_records() -> None:
    ended = signing(ended={"agent-7.1": "2026-11-28T04:00:00Z"})
    end_ms = 1_795_838_400_000
    token = make_token(ROOT, AGENT)
    assert ended.signer_of(TOPIC, written_by(token, EVENT, timestamp=end_ms - 1)) == "agent-7"
    assert ended.signer_of(TOPIC, written_by(token, EVENT, timestamp=end_ms)) is None
    newer = make_token(ROOT, make_principal("agent-7", ["record"], 2))
    assert ended.signer_of(TOPIC, written_by(newer, EVENT, timestamp=end_ms)) == "agent-7"


def test_a_record_that_a_stage_writes_for_a_principal_is_the_principals() -> None:
    headers = tuple(signing().sign("agent-7", TOPIC, b"e1", REWARD))
    assert signing().signer_of(TOPIC, Raw(0, b"e1", REWARD, 0, headers)) == "agent-7"
    assert signing(principals=()).sign("agent-7", TOPIC, b"e1", REWARD) == []
