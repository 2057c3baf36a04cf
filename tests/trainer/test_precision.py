import pytest

from trainer.preflight.settings import PlanSettings
from trainer.pretrain.run import decide_precision
from trainer.process.precision import (
    Choice,
    Device,
    choose_precision,
    warn_of_slow_bf16,
    weakest,
)
from trainer.runs.run_folder import RunFolder, to_yaml
from trainer.settings import Phase, PretrainSettings

CPU = Device("this CPU")
H200 = Device("NVIDIA H200", has_bf16=True, can_compile=True)
V100 = Device("Tesla V100-SXM2-32GB", can_compile=True)
PHASES = [Phase(16, 8, 4, 1e-3)]
OTHERWISE = "; --precision fp32 --compile false trains as on a CPU"


def settings_of(folder, **changes):
    return PretrainSettings(["data"], str(folder), PHASES, **changes)


def write_run(folder, settings):
    folder.mkdir()
    run = RunFolder(folder)
    run.facts.write_text("{}")
    run.config.write_text(to_yaml(settings))
    return folder


@pytest.mark.parametrize(
    ("device", "given", "precision", "is_compiled", "message"),
    [
        (CPU, {}, "fp32", False, ""),
        (CPU, {"precision": "bf16"}, "bf16", False, ""),
        (CPU, {"is_compiled": True}, "fp32", True, ""),
        (V100, {}, "fp32", False, ""),
        (H200, {}, "bf16", True, "NVIDIA H200: training in bf16, compiled" + OTHERWISE),
        (
            H200,
            {"precision": "bf16"},
            "bf16",
            True,
            "NVIDIA H200: training in bf16, compiled" + OTHERWISE,
        ),
        (
            H200,
            {"is_compiled": False},
            "bf16",
            False,
            "NVIDIA H200: training in bf16, not compiled" + OTHERWISE,
        ),
        (
            H200,
            {"precision": "fp32"},
            "fp32",
            False,
            "NVIDIA H200: training in fp32, not compiled; --precision bf16 is faster",
        ),
        (H200, {"precision": "fp32", "is_compiled": False}, "fp32", False, ""),
        (H200, {"precision": "bf16", "is_compiled": True}, "bf16", True, ""),
        (
            H200,
            {"zero_stage": 0},
            "fp32",
            False,
            "NVIDIA H200: training in fp32, not compiled; --zero_stage 1 --precision bf16 is"
            " faster",
        ),
        (
            H200,
            {"zero_stage": 0, "is_compiled": True},
            "fp32",
            True,
            "NVIDIA H200: training in fp32, compiled; --zero_stage 1 --precision bf16 is faster",
        ),
        (
            H200,
            {"zero_stage": 3},
            "bf16",
            False,
            "NVIDIA H200: training in bf16, not compiled, which does not work with zero_stage 3"
            + OTHERWISE,
        ),
        (
            Device("NVIDIA L4", has_bf16=True),
            {},
            "bf16",
            False,
            "NVIDIA L4: training in bf16, not compiled, as there is no Triton or no C compiler"
            + OTHERWISE,
        ),
    ],
)
def test_a_new_run(device, given, precision, is_compiled, message):
    expected = Choice(precision, is_compiled, message)
    assert choose_precision(device, **{"zero_stage": 1, **given}) == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_run_keeps_what_it_began_with(precision, is_compiled):
    begun = {"precision": precision, "compile": is_compiled}
    assert choose_precision(H200, 1, begun=begun) == Choice(precision, is_compiled)
    # A CPU compiles only if it is asked to: it need not have a C++ compiler.
    assert choose_precision(CPU, 1, begun=begun) == Choice(precision, is_compiled=False)
    assert choose_precision(H200, 3, begun=begun) == Choice(precision, is_compiled=False)


def test_what_is_given_wins_over_what_a_run_began_with():
    begun = {"precision": "bf16", "compile": True}
    assert choose_precision(H200, 1, "fp32", False, begun) == Choice("fp32", is_compiled=False)


def test_all_ranks_must_be_able_to():
    assert weakest([H200, H200]) == H200
    assert weakest([H200, V100]) == Device("NVIDIA H200", can_compile=True)
    assert weakest([H200, CPU]) == Device("NVIDIA H200")


def test_a_run_that_began_on_a_cpu_continues_on_a_gpu_as_it_began(tmp_path):
    folder = write_run(tmp_path / "run", settings_of("run", precision="fp32", compile=False))
    found = decide_precision(settings_of(folder), H200, None)
    assert found == Choice("fp32", is_compiled=False)
    assert decide_precision(settings_of(tmp_path / "new"), H200, None).precision == "bf16"


def test_a_folder_that_is_no_run_decides_nothing(tmp_path):
    (tmp_path / "config.yaml").write_text("precision: fp32\n")
    assert decide_precision(settings_of(tmp_path), H200, None).precision == "bf16"


@pytest.mark.parametrize(
    ("gpu", "given", "precision", "is_compiled"),
    [
        ("h200", {}, "bf16", True), ("v100", {}, "fp32", False),
        ("h200", {"zero_stage": 0}, "fp32", False), ("h200", {"zero_stage": 3}, "bf16", False),
        ("l4", {"precision": "fp32"}, "fp32", False),
        ("cpu", {"peak_tflops": 0.05}, "fp32", False),
    ],
)  # fmt: skip
def test_a_plan_counts_with_what_the_gpu_decides(gpu, given, precision, is_compiled):
    choice = PlanSettings(phases=PHASES, gpu=gpu, **given).choice
    assert (choice.precision, choice.is_compiled) == (precision, is_compiled)


@pytest.mark.parametrize(
    ("time", "asked", "expected"),
    [
        (54.3, ("bf16", "fp32"), "--precision fp32 is faster"),
        (54.3, ("fp32", "bf16"), "--optimizer.muon_precision fp32 is faster"),
        (54.3, ("bf16", "bf16"), "--precision fp32 --optimizer.muon_precision fp32 is faster"),
        (54.3, ("fp32", "fp32"), ""),
        (1.4, ("bf16", "bf16"), ""),
    ],
)
def test_who_trains_in_bf16_on_a_cpu_without_it_is_told(time, asked, expected):
    slow = weakest([CPU, Device("this CPU", bf16_slowdown=time)])
    begin = f"this CPU multiplies {time:.0f} times as slowly in bf16 as in fp32; "
    assert warn_of_slow_bf16(slow, *asked) == (begin + expected if expected else "")
    assert warn_of_slow_bf16(H200, *asked) == ""
