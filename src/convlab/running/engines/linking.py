"""Link-time optimisation: nvJitLink makes machine code of the LTO-IR of either compiler."""

from __future__ import annotations

import re

from convlab.ladder.stage import Capability
from convlab.running.engines.architecture import arch_of, own_instructions
from convlab.running.engines.cubin import Cubin, Layout, kernel_in


class UnknownGPU(ValueError):
    """The compilers that are here know no GPU of this compute capability."""


# Beside a driver, nvJitLink keeps what it linked, and says no registers of what it finds there.
OPTIONS = ("-lto", "-verbose", "-no-cache")

# Facts that the linker's log states, each by the pattern of its line. It states the stack and the
# spills of the kernel and those of every function that is not inlined.
_KERNEL = re.compile(r"Compiling entry function '(\S+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)\n")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame")
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
_SHARED = re.compile(r"(\d+) bytes smem")


def linked(
    lto_ir: bytes,
    capability: Capability,
    *,
    kernel: str,
    layout: Layout,
    max_registers: int | None = None,
    lineinfo: bool = False,
) -> Cubin:
    """Return the kernel of this LTO-IR as machine code; ``kernel`` is its Python function's name,
    for errors. Raises :class:`UnknownGPU` where the linker does not know the GPU, ``RuntimeError``
    where it refuses the kernel, with what it says, or does not say what the kernel takes."""
    options = [f"-arch={own_instructions(capability)}", *OPTIONS]
    if lineinfo:
        options.append("-lineinfo")
    if max_registers:
        options.append(f"-maxrregcount={max_registers}")
    code, log = _link(lto_ir, capability, options, kernel)
    registers = _last(_REGISTERS, log)
    if not registers:  # every budget would be kept
        raise RuntimeError(f"nvJitLink did not say how many registers {kernel} takes")
    name, parameter_bytes = kernel_in(code)
    properties = _properties_of_kernel(log)
    return Cubin(
        capability=capability,
        name=name,
        layout=layout,
        parameter_bytes=parameter_bytes,
        registers=registers,
        stack_bytes=_last(_STACK, properties),
        spill_bytes=sum(map(int, _SPILLS.findall(properties)[-2:])),
        shared_bytes=_last(_SHARED, log),
        code=code,
    )


def _properties_of_kernel(log: str) -> str:
    """Return the lines about the kernel itself; the whole log if it does not tell them apart."""
    _, *parts = _FUNCTION.split(log)
    kernel = _KERNEL.search(log)
    lines = dict(zip(parts[::2], parts[1::2], strict=True))
    return lines.get(kernel[1], log) if kernel else log


def _last(pattern: re.Pattern[str], log: str) -> int:
    """Return the number in the last match, or 0 without one: the kernel's line comes last."""
    found = pattern.findall(log)
    return int(found[-1]) if found else 0


def _link(
    lto_ir: bytes, capability: Capability, options: list[str], kernel: str
) -> tuple[bytes, str]:
    """Return the cubin and the linker's log."""
    from cuda.bindings import nvjitlink

    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        if "UNRECOGNIZED_ARCH" in str(error):
            raise UnknownGPU(f"no compiler here knows {arch_of(capability)}: {error}") from error
        raise
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, lto_ir, len(lto_ir), "kernel")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            said = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, said)
            reason = said.decode(errors="replace").strip("\0 \n") or "it does not say why"
            raise RuntimeError(f"nvJitLink refused {kernel} ({error}): {reason}") from error
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    finally:
        nvjitlink.destroy(handle)
    return bytes(code), log.decode(errors="replace")
