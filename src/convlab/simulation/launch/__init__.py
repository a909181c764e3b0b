"""One launch of the strict simulator, put together from the other parts.

``simulated_launch`` has the launch. It is made of ``simulated_gpu``, which it runs on, with
``global_memory``, where its arguments lie; ``translation``, the kernel as this launch runs it;
``running_blocks``, which begins and follows the blocks; ``launch_rules``, and ``analysis``, which
holds the log to them; and ``failures``, what the exceptions of a kernel mean. ``recorder`` is what
a trace gives to hear of all that.
"""

from convlab.simulation.launch.recorder import RecordedLaunch as RecordedLaunch
from convlab.simulation.launch.recorder import Recorder as Recorder
from convlab.simulation.launch.simulated_launch import SimulatedLaunch as SimulatedLaunch
