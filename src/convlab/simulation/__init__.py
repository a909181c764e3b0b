"""The strict simulator: a kernel's threads, what they do to memory, and what is wrong with that.

It is a product of its own: it imports :mod:`convlab.device` and :mod:`convlab.support`, and knows
nothing of problems, stages or plans. ``host.programs`` is the way in for any program;
:mod:`convlab.running.engines.simulator` is the engine that runs stages with it. ``launch`` puts
the parts together:

- ``language`` copies the kernel's function with other meanings and Numba's types,
- ``numbers`` are those of a GPU, ``memory`` makes arrays whose accesses are checked,
- ``threads`` runs a block's threads as greenlets, and blocks in several orders,
- ``recording`` is the one log that all of them write to,
- ``rules`` reads it: races, orders, memory traffic, findings and their remedies.
"""
