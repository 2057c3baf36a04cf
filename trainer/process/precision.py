"""Decides in which number format a run trains, and whether its model is compiled.

A setting that the user gives decides. If it is not given, a run that continues keeps what it began
with, and for a new run the device decides: on a GPU that multiplies in bf16, the run trains in bf16
and is compiled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Precision = Literal["fp32", "bf16"]
_SLOW = 3.0
"""The `Device.bf16_slowdown` above which people are told; an AMD EPYC without AVX512-BF16 has
20 to 80, one with it 0.8."""


@dataclass(frozen=True)
class Device:
    """The facts about a rank's device by which number format and compilation are decided.

    Attributes:
        name: Name of the device for people.
        has_bf16: Whether it is a GPU that multiplies in bf16.
        can_compile: Whether it has what torch.compile needs for a GPU: Triton and a C compiler.
        bf16_slowdown: The time of a matrix product in bf16 divided by its time in fp32, measured on
            CPUs alone.
    """

    name: str
    has_bf16: bool = False
    can_compile: bool = False
    bf16_slowdown: float = 1.0


@dataclass(frozen=True)
class Choice:
    """The number format in which a run trains, and whether its model is compiled.

    Attributes:
        precision: Number format of the forward and backward passes.
        is_compiled: Whether the model is compiled.
        message: A line about what was chosen on a GPU with bf16, for a new run whose user left the
            precision or the compilation open; otherwise "".
    """

    precision: Precision
    is_compiled: bool
    message: str = ""


def weakest(devices: list[Device]) -> Device:
    """Returns a Device with only those abilities that all of the devices have.

    Its name is that of `devices[0]`.
    """
    return Device(
        name=devices[0].name,
        has_bf16=all(device.has_bf16 for device in devices),
        can_compile=all(device.can_compile for device in devices),
        bf16_slowdown=max(device.bf16_slowdown for device in devices),
    )


def warn_of_slow_bf16(device: Device, precision: str, muon_precision: str = "fp32") -> str:
    """Returns a line for people if work is to be done in bf16 on a CPU that is slow in it.

    A CPU without instructions for bf16 (AMX, AVX512-BF16) takes some 50 times as long in it.

    Args:
        device: What all ranks' devices can do.
        precision: Number format of the forward and backward passes.
        muon_precision: The number format in which Muon orthogonalises.

    Returns:
        The line, with the flags that avoid this; "" if there is nothing to say.
    """
    asked = {"--precision": precision, "--optimizer.muon_precision": muon_precision}
    slow = [flag for flag, asked_precision in asked.items() if asked_precision == "bf16"]
    if not slow or device.bf16_slowdown <= _SLOW:
        return ""
    cure = " ".join(f"{flag} fp32" for flag in slow)
    return (
        f"{device.name} multiplies {device.bf16_slowdown:.0f} times as slowly in bf16 as in fp32;"
        f" {cure} is faster"
    )


def default_precision(device: Device, zero_stage: int) -> Precision:
    """Returns the precision of new work whose user gave none.

    It is bf16 if the device multiplies in bf16 and the stage is not 0, because DeepSpeed trains in
    bf16 under ZeRO-1 to 3 only; otherwise it is fp32.

    Args:
        device: What all ranks' devices can do.
        zero_stage: ZeRO stage of the work.
    """
    return "bf16" if device.has_bf16 and zero_stage else "fp32"


def choose_precision(
    device: Device,
    zero_stage: int,
    precision: Precision | None = None,
    is_compiled: bool | None = None,
    begun: Mapping[str, Any] | None = None,
) -> Choice:
    """Returns the precision of a run and whether it is compiled.

    What the user gave is used as it is. If the user did not give the precision, a run that
    continues keeps its own, and a new run takes `default_precision`.

    If the user did not say whether to compile, the model is compiled only if the device has bf16
    and can compile and the stage is not 3, with which torch.compile does not work. A new run must
    train in bf16 for that, and a run that continues must have been compiled before.

    Args:
        device: What all ranks' devices can do.
        zero_stage: ZeRO stage of the run.
        precision: The precision that the user gave; None if the user gave none.
        is_compiled: Whether the user asked for compiling; None if the user did not say.
        begun: The settings with which the run was begun, from its config.yaml; None for a new run.
    """
    is_open = begun is None and None in (precision, is_compiled)
    if precision is None and begun is not None:
        precision = begun.get("precision")
    if precision is None:
        precision = default_precision(device, zero_stage)
    if is_compiled is None:
        can_compile = device.has_bf16 and device.can_compile and zero_stage != 3
        is_compiled = can_compile and precision == "bf16"
        if begun is not None:
            is_compiled = can_compile and bool(begun.get("compile"))
    message = ""
    if is_open and device.has_bf16:
        message = _describe(device, zero_stage, precision, is_compiled)
    return Choice(precision, is_compiled, message)


def _describe(device: Device, zero_stage: int, precision: str, is_compiled: bool) -> str:
    """Returns a line for people: what was chosen, for which device, and which flags change it."""
    how = "compiled" if is_compiled else "not compiled"
    begin = f"{device.name}: training in {precision}, {how}"
    if precision == "fp32":
        cure = "--precision bf16" if zero_stage else "--zero_stage 1 --precision bf16"
        return f"{begin}; {cure} is faster"
    if not is_compiled and zero_stage == 3:
        begin += ", which does not work with zero_stage 3"
    elif not is_compiled and not device.can_compile:
        begin += ", as there is no Triton or no C compiler"
    return f"{begin}; --precision fp32 --compile false trains as on a CPU"
