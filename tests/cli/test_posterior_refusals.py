"""Posterior sampling refuses measurements, operators and settings that do not fit, in one line."""

import numpy as np
import pytest

from blackout.config.choices import list_choices
from tests.cli.test_posterior import DECODED, REWARD, SMALL, WALK


def files(path):
    np.savez(path / "negative.npz", y=-np.ones((4, 4, 1)))
    np.savez(path / "shape.npz", y=np.ones((5, 4, 1)))
    np.savez(path / "none.npz", x0=np.ones((4, 4, 1)))
    np.savez(path / "nan.npz", y=np.full((4, 4, 1), np.nan))
    np.savez(path / "words.npz", y=np.full((4, 4, 1), "a"))
    np.savez(path / "bright.npz", y=np.full((8, 8, 1), 40))
    np.savez(path / "fraction.npz", y=np.full((4, 4, 1), 0.5))
    np.savez(path / "truth.npz", y=np.ones((4, 4, 1)), x0=np.full((8, 8, 1), 99))
    (path / "text.npz").write_text("hello")
    np.save(path / "small.npy", np.ones((3, 3, 1), dtype=bool))
    np.save(path / "hidden.npy", np.zeros((8, 8, 1), dtype=bool))
    np.save(path / "below.npy", np.full((2, 64), np.nan))
    np.save(path / "map.npy", np.ones(5))


def of_file(operator, setting):
    return ("posterior=sgdd", f"operator={operator}", f"operator.{setting}", "measurement=test:0")


ENCODED = "operator.encoder={_target_: torch.nn.AvgPool2d, kernel_size: 4}"


POOL, POINT = (
    ("posterior=sgdd", "operator=pool"),
    ("posterior=sgdd", "operator=identity", "measurement=test:0"),
)


BRIGHT = "measurement=FILES/bright.npz"


DIRECT = ("posterior=auto", "operator=identity", "noise=binomial", "measurement=test:0")


HOSTILE = {
    "unknown method": (("posterior=sgd", "operator=pool", "measurement=test:0"), "sgdd"),
    "unknown operator": (("posterior=sgdd", "operator=pol", "measurement=test:0"), "pool"),
    "unknown task": (("task=photon", "measurement=test:0"), "photons"),
    "unknown field": ((*POINT, "posterior.sweep=3"), "sweep"),
    "no operator": (("posterior=sgdd", "measurement=test:0"), "operator"),
    "no measurement": (POOL, "measurement"),
    "calibration of a measurement": (
        (*POOL, "measurement=test:0", "calibrate=20"),
        "measurement must be left out",
    ),
    "no method": (("operator=pool", "measurement=test:0"), "posterior"),
    "beyond the split": ((*POOL, "measurement=test:9999"), "9999"),
    "twice": (("measurement='test:1,1'", *POOL), "twice"),
    "number alone": ((*POOL, "measurement=17"), "measurement"),
    "no file": ((*POOL, "measurement=FILES/nothing.npz"), "nothing.npz"),
    "text": ((*POOL, "measurement=FILES/text.npz"), "text.npz"),
    "no y": ((*POOL, "measurement=FILES/none.npz"), "no array y"),
    "another shape": ((*POOL, "measurement=FILES/shape.npz"), "shape"),
    "negative": ((*POOL, "measurement=FILES/negative.npz"), "y must"),
    "not a number": ((*POOL, "measurement=FILES/nan.npz"), "finite"),
    "fractions": ((*POOL, "measurement=FILES/fraction.npz"), "whole"),
    "impossible": (("posterior=sgdd", "operator=identity", "noise=binomial", BRIGHT), "impossible"),
    "impossible pixels": (("posterior=sgdd", "operator=inpaint_box", BRIGHT), "impossible"),
    "pairs of counts": (("posterior=sgdd", "operator=xor", "measurement=test:0"), "0 and 1"),
    "blocks": ((*POOL, "operator.size=3", "measurement=test:0"), "divide"),
    "box outside": (
        ("posterior=sgdd", "operator=inpaint_box", "operator.rows=[3,9]", "measurement=test:0"),
        "rows",
    ),
    "everything hidden": (of_file("inpaint", "mask=FILES/hidden.npy"), "observed"),
    "mask of another size": (of_file("inpaint", "mask=FILES/small.npy"), "mask"),
    "no mask": (("posterior=sgdd", "operator=inpaint", "measurement=test:0"), "mask"),
    "NaN in a matrix": (of_file("matrix", "matrix=FILES/below.npy"), "matrix"),
    "exact sums": ((*POOL, "noise=exact", "measurement=test:0"), "exact"),
    "levels out of order": (
        (*POINT, "posterior.first_level=0.1", "posterior.last_level=1"),
        "level",
    ),
    "levels beyond": ((*POINT, "posterior.first_level=100"), "last time"),
    "no sweeps": ((*POINT, "posterior.sweeps=0"), "sweeps"),
    "unknown start": ((*POINT, "posterior.start=middle"), "start"),
    "direct, no": ((*POOL, "posterior=direct", "measurement=test:0"), "direct"),
    "overwrite sums": ((*POOL, "posterior=overwrite", "measurement=test:0"), "overwrite"),
    "beside inpaint": ((*POINT, "inpaint=FILES/text.npz"), "inpaint"),
    "survival": ((*POINT, "noise=binomial", "noise.survival=1.5"), "survival"),
    "exposure": ((*POINT, "noise=poisson", "noise.exposure=-1"), "exposure"),
    "indices": ((*POINT, "indices=[99]"), "indices"),
    "decoded otherwise": (
        ("posterior=sgdd", *DECODED, "operator.decoded_shape=[1,8,16]", "measurement=test:0"),
        "decoded",
    ),
    "encoded otherwise": (
        ("posterior=sgdd", *DECODED, ENCODED, "measurement=test:0"),
        "encoder must return",
    ),
    "a reward measures nothing": (
        ("posterior=sgdd", "operator=reward", REWARD, "measurement=test:0"),
        "reward",
    ),
    "guidance": (
        (*POINT, "sampler.guidance.scale=2"),
        "sampler.guidance.scale is not for posteriors",
    ),
    "guidance where": (
        (*POINT, "sampler.guidance.logit_range=[-3,3]"),
        "sampler.guidance.logit_range",
    ),
    "correctors": (
        (*POINT, "sampler=poisson", "sampler.correction.steps=1"),
        "sampler.correction.steps",
    ),
    "a corrector": ((*POINT, "sampler/correction=level"), "sampler.correction.corrector"),
    "correctors where": (
        (*POINT, "sampler.correction.logit_range=[-3,3]"),
        "sampler.correction.logit_range",
    ),
    "particles": ((*POINT, "sampler.inpainting_particles=4"), "sampler.inpainting_particles"),
    "steps of a grid": ((*POINT, WALK), "posterior.sweeps"),
    "a start that is not drawn": ((*POINT, "sampler.poisson_start=false"), "sampler.poisson_start"),
    "classes": ((*POINT, "classes=[3]"), "classes"),
    "condition": ((*POINT, "condition={total:300}"), "condition"),
    "sweeps of one run": ((*DIRECT, "posterior.sweeps=5"), "posterior.sweeps"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_input_is_refused_in_one_line(run, trained_model, tmp_path, name):
    files(tmp_path)
    options, word = HOSTILE[name]
    words = [option.replace("FILES", str(tmp_path)) for option in options]
    run(
        "sample", f"ckpt={trained_model}", f"out={tmp_path / 'out'}", *SMALL, *words
    ).assert_refused(word)
    assert not (tmp_path / "out" / "samples.npz").exists()


def test_the_groups_of_the_command_line_are_complete():
    for group, number in {"posterior": 11, "operator": 15, "noise": 6}.items():
        assert len(list_choices(group)) == number
