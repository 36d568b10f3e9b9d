"""Run a contestant's module under any interpreter: ``python -P launch.py MODULE``.

The checkout goes to the end of the module path, so that nothing in it hides a package of the contestant's environment.
"""

import runpy
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
