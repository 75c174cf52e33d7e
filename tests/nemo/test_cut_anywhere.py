"""A run that is cut before any of its writes and resumed has the files of a run that nothing happened to.

With parts of the user's own and with those of the bus; their rewards are 0 and 1, so many groups have equal means.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollbus.nemo import trainer_adapter, trajectory_builder
from rollbus.nemo.evaluation import PLAY
from rollbus.nemo.runs import outputs
from rollbus.runtime.files import write_whole
from tests.faults.finetune.parts import LowestConfig
from tests.nemo.test_custom_components import EXAMPLE, guide_builder
from tests.nemo.world import Steady, document, memory_bus, opened, read, rows_in, run_epochs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of what the toolkit imports
]
EPOCHS = 2
BY_THE_CLOCK = ("timestamp", "step_seconds_outside_backend")


class Cut(BaseException):
    """The process is gone."""


class Knife:
    """Counts the writes, and cuts before one of them."""

    def __init__(self, at: int | None) -> None:
        self.at, self.writes = at, 0

    def before(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def count_and_call(*arguments: Any, **named: Any) -> Any:
            self.writes += 1
            if self.writes - 1 == self.at:
                raise Cut
            return write(*arguments, **named)

        return count_and_call


async def steady(question: str, llm: Any) -> str:
    """Ask with a seed of the attempt's own, so that attempts differ and a repeated attempt does not."""
    play = PLAY.get()
    seed = 0 if play is None else 1 + 2 * play.epoch + play.generation
    return str((await llm.ainvoke(question, seed=seed)).content)


def use_own_parts(plain: dict[str, Any]) -> None:
    guide_builder(plain)
    plain["trainers"]["t"]["_type"] = LowestConfig.static_type()  # type: ignore[no-untyped-call]
    plain["trainer_adapters"]["a"] = {"_type": "best_of_adapter", "backend": {"folder": "files", "keep_share": 0.5}}
    plain["rollbus"]["imports"] = ["backend"]


def ours(plain: dict[str, Any]) -> None:
    """Leave the guides' types, which are read as those of the bus."""


async def files_after(folder: Path, parts: Callable[[dict[str, Any]], None], knife: Knife) -> dict[str, Sequence[Any]]:
    """Run, cut, resume; return every file by its name, its lines without times."""
    curriculum = {"enabled": True, "initial_percentile": 0.5, "expansion_interval": 1, "min_reward_diff": 0.0}
    plain = document(folder, examples=4, workflow=steady, curriculum_learning=curriculum)
    parts(plain)
    if "folder" in (backend := plain["trainer_adapters"]["a"]["backend"]):
        backend["folder"] = str(folder / "output" / backend["folder"])
    plan = read(folder, plain)
    bus = memory_bus(plan, folder=folder / "journal")
    options: dict[str, Any] = {"validation_dataset": str(folder / "train.json"), "validation_interval": 5}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(outputs, "write_whole", knife.before(write_whole))
        for module in (trainer_adapter, trajectory_builder):
            patched.setattr(module, "append_line", knife.before(outputs.append_line))
        patched.setattr(bus, "publish", knife.before(bus.publish))
        try:
            async with opened(plan, bus, Steady(), **options) as components:
                await run_epochs(components, EPOCHS)
        except Cut:
            async with opened(plan, bus, Steady(), resume=True, **options) as components:
                await run_epochs(components, EPOCHS)
    output_files = sorted(path for path in (folder / "output").rglob("*.json*") if "journal" not in path.parts)
    return {str(path.relative_to(folder)): rows_in(path, *BY_THE_CLOCK) for path in output_files}


@pytest.mark.parametrize("parts", [use_own_parts, pytest.param(ours, marks=pytest.mark.faults)])
async def test_a_run_cut_before_any_write_ends_with_the_same_files(
    tmp_path: Path, parts: Callable[[dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    knife = Knife(None)
    (tmp_path / "quiet").mkdir()
    expected = await files_after(tmp_path / "quiet", parts, knife)
    assert len(expected) > 4, expected.keys()
    for at in range(knife.writes):
        (tmp_path / f"cut-{at}").mkdir()
        files_of_cut = await files_after(tmp_path / f"cut-{at}", parts, Knife(at))
        assert files_of_cut == expected, f"cut before write {at} of {knife.writes}"
