"""Annealing in stages: nearly the error of one beam, linear in the length of a code, resumed bit for bit."""

import numpy as np
import pytest
from helpers.sizes import sized
from helpers.training import correlated_rows, held_out_error, same_state

from aggtree.engine.coding.encoding import Encoder
from aggtree.engine.coding.stages import stages
from aggtree.engine.dictionaries import CodeLayout
from aggtree.engine.params import AnnealingParams
from aggtree.engine.training.staged import StagedAnnealing, make_trainer, trainer_from_state

PARAMS = AnnealingParams(words=(8,) * 6, beam=4, rounds=3, stage=2)
WIDE = AnnealingParams(words=(300, *(8,) * 5), beam=4, rounds=3, stage=2)


def rows() -> np.ndarray:
    return correlated_rows(sized(3000, 400))


def test_how_a_code_is_cut() -> None:
    narrow, wide = CodeLayout((8,) * 5), CodeLayout((300, 8, 8, 8))
    assert stages(narrow, 2) == [(0, 2), (2, 4), (4, 5)]
    assert stages(narrow, 0) == stages(narrow, 9) == [(0, 5)]
    assert stages(wide, 2) == [(1, 3), (3, 4)]
    assert stages(CodeLayout((300,)), 2) == []


@pytest.mark.parametrize("params", [PARAMS, WIDE], ids=["narrow", "wide"])
def test_stages_have_nearly_the_error_of_one_beam(params: AnnealingParams) -> None:
    from dataclasses import replace

    trained = make_trainer(params)
    assert isinstance(trained, StagedAnnealing)
    staged = held_out_error(trained.fit(rows()), correlated_rows(500, seed=1))
    joint = held_out_error(make_trainer(replace(params, stage=0)).fit(rows()), correlated_rows(500, seed=1))
    assert staged < 1.3 * joint
    errors = trained.distortions
    assert errors[-1] < errors[0]


def test_a_code_is_that_of_its_stages() -> None:
    trainer = make_trainer(PARAMS).fit(rows())
    fresh = correlated_rows(70, seed=3)
    codes = trainer.encode(fresh)
    dictionaries, left = trainer.dictionaries, fresh.astype(np.float32)
    for start, stop in stages(dictionaries.layout, 2):
        part = type(dictionaries)(dictionaries.words[8 * start : 8 * stop], CodeLayout((8, 8)))
        own = Encoder(part, 4).encode(left)
        np.testing.assert_array_equal(codes[:, start:stop], own)
        left -= part.decode(own)


@pytest.mark.parametrize("params", [PARAMS, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("after", [2, 5, 9])
def test_a_fit_that_was_cut_short_goes_on(params: AnnealingParams, after: int) -> None:
    whole = make_trainer(params).fit(rows())
    cut = make_trainer(params)
    states = []

    def stop(number: int, _: float) -> None:
        if number == after:
            states.append(cut.state())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.fit(rows(), progress=stop)
    again = trainer_from_state({name: array.copy() for name, array in states[0].items()})
    again.fit(rows(), resume=True)
    assert same_state(again, whole)


def test_batches_refine_all_stages() -> None:
    trainer = make_trainer(PARAMS).fit(rows())
    before = held_out_error(trainer, correlated_rows(500, seed=9))
    for seed in range(1, 4):
        trainer.partial_fit(correlated_rows(sized(3000, 400), seed=seed))
    assert held_out_error(trainer, correlated_rows(500, seed=9)) < 1.02 * before
    assert same_state(trainer_from_state(trainer.state()), trainer)
