"""Names that no kernel can call: the refusal says what to do instead."""

from __future__ import annotations

import logging
import os  # noqa: F401  for kernels, as what follows
import pdb  # noqa: F401
import random  # noqa: F401
import sys  # noqa: F401
import time  # noqa: F401
import warnings  # noqa: F401
from pdb import set_trace  # noqa: F401
from pdb import set_trace as stop_here  # noqa: F401
from time import perf_counter as clock  # noqa: F401

import numpy as np
import pytest
from kernels.cases import kernel_function
from numba import cuda

from convlab.simulation.host.programs import simulate
from convlab.simulation.rules.findings import NotSimulated

DEBUGGER, PRINTS = r"call breakpoint\(\)", r"call print\(\) with numbers"
CLOCK, HOST, FILES = "measure on the host", "do this on the host", "give it what they hold as an"
log, sqrt_plus = logging.getLogger("kernels"), lambda x: x + 1
ADVICE = {
    "set_trace()": DEBUGGER,
    "stop_here()": DEBUGGER,
    "pdb.set_trace()": DEBUGGER,
    "import pdb; pdb.set_trace()": DEBUGGER,
    "from pdb import set_trace as stop; stop()": DEBUGGER,
    "import math as m; a[0] = m.pi": "import it outside of the kernel",
    "logging.info('x')": PRINTS,
    "log.warning('x')": PRINTS,
    "warnings.warn('x')": PRINTS,
    "sys.stdout.write('x')": PRINTS,
    "print('x', file=sys.stderr)": PRINTS,
    "print(f'{a[0]}')": PRINTS,
    "input()": FILES,
    "open('x')": FILES,
    "a[0] = time.perf_counter()": CLOCK,
    "a[0] = clock()": CLOCK,
    "a[0] = random.random()": r"call numba\.cuda\.random",
    "a[0] = os.getpid()": HOST,
    "sys.exit()": "end the thread with return",
    "exit()": "end the thread with return",
    "eval('1')": "a kernel is compiled",
    "a[0] = sqrt_plus(a[0])": r"a kernel calls device functions: .* @cuda\.jit\(",
    "cuda.synchronize()": r"the barrier of a block is cuda\.syncthreads\(\)",
    "cuda.to_device(a)": r"cuda\.to_device is for the host",
}


@pytest.mark.parametrize("line", ADVICE)
def test_what_no_kernel_can_call_gets_fitting_advice(line: str) -> None:
    kernel = cuda.jit(
        kernel_function("kernel", "a", [line], test_what_no_kernel_can_call_gets_fitting_advice)
    )
    with pytest.raises(NotSimulated, match=rf"^Numba refuses .*: {ADVICE[line]}.*:2$"):
        simulate(kernel, 1, 1, np.ones(1))
