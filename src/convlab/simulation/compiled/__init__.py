"""The compiled engine: kernels as machine code of this CPU, with every check, for long launches.

Numba compiles the kernel's own function for the CPU. ``cuda``'s names and the arrays get other
meanings there: each access first looks at its element's cell in shadow memory. Each CUDA thread has
a small stack of its own, and waits by a switch to another one's.

The engine only decides whether a launch is beyond suspicion. What is suspicious runs again on the
other engine (:mod:`convlab.simulation.launch`), which writes the findings. So every check here may
suspect too much, never too little; and what this engine does not know it refuses, by
:class:`~convlab.simulation.compiled.refused.NeedsGreenlets`.

Begin to read at ``launches`` (which launches, and what happens to suspects), then ``kernels`` (from
a function to machine code), ``cells`` (the rules) and ``blocks`` (the scheduler).
"""
