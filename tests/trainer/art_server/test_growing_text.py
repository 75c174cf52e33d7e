from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer
from rollbus.trainer.art_server.sampler.growing_text import GrowingText

BYTE_LEVEL = build_tokenizer(["say a letter"], vocabulary=300)


def metaspace() -> Any:
    """A tokenizer that writes a word's leading space only behind another."""
    words = {"▁say": 0, "▁a": 1, "▁letter": 2, "s": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="s"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def grown(tokenizer: Any, token_ids: list[int]) -> list[str]:
    text, texts = GrowingText(tokenizer), []
    for token_id in token_ids:
        text.add(token_id)
        texts.append(text.text)
    return texts


@given(token_ids=st.lists(st.integers(0, 299), max_size=40) | st.text(max_size=12).map(BYTE_LEVEL.encode))
def test_text_grows_to_what_all_tokens_decode_to(token_ids: list[int]) -> None:
    whole = [BYTE_LEVEL.decode(token_ids[:end], skip_special_tokens=True) for end in range(1, len(token_ids) + 1)]
    assert grown(BYTE_LEVEL, token_ids) == whole


@given(token_ids=st.lists(st.integers(0, 3), max_size=12))
def test_spaces_stand_where_the_whole_text_has_them(token_ids: list[int]) -> None:
    tokenizer = metaspace()
    whole = [tokenizer.decode(token_ids[:end], skip_special_tokens=True) for end in range(1, len(token_ids) + 1)]
    assert grown(tokenizer, token_ids) == whole


def test_a_token_is_decoded_a_few_times_however_long_the_text() -> None:
    decoded: list[int] = []

    class Counting:
        def decode(self, token_ids: list[int], **options: bool) -> str:
            decoded.append(len(token_ids))
            return str(BYTE_LEVEL.decode(token_ids, **options))

    grown(Counting(), BYTE_LEVEL.encode("say a letter " * 50))
    assert max(decoded) <= 4
