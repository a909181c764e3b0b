"""The strict simulator: a kernel's threads, what they do to memory, and what is wrong with that.

:mod:`convlab.engines.simulator` is the engine that runs kernels with it, ``programs`` the way in
for any program. ``simulated_launch`` puts the parts together: the kernel's function copied with
other meanings (``python_body``), numbers (``scalars``), arrays (``arrays``, made by ``memory``),
``cuda`` (``simulated_cuda``), the scheduler of a block's threads (``greenlets``) and of blocks
(``scheduler``), in several ``orders``, async copies and tensor cores (``asynchronous``). All write
to one ``access_log``, which ``races``, ``happens_before`` and ``memory_rules`` read;
``findings`` says what is wrong. Nothing here knows of problems or stages.
"""
